"""What every object that runs normd has to keep to, whichever overlay it comes from.

`faults(objects)` takes the objects of one rendering and returns a line for each breach.
"""

import re

RUNS_PODS = {"Deployment", "ClusterServingRuntime"}
GRACE_DEFAULT_S = 30
UNITS = {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|ns|h|m|s)")
SECONDS = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# What normd keeps beside its budgets: the program, its threads, the models of the demo.
MEMORY_BESIDE = 512 * 2**20
BUDGETS = {"max_inflight_bytes": 2**30, "max_transport_bytes": 2**30, "pool_bytes": 2**28}


def quantity(text):
    number, unit = re.fullmatch(r"([\d.]+)(m|Ki|Mi|Gi|)", str(text)).groups()
    return float(number) * UNITS[unit]


def seconds(text):
    if text == "0":
        return 0.0
    parts = DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


def variables(container, objects):
    """The container's environment, as far as the objects tell."""
    maps = {thing["metadata"]["name"]: thing.get("data", {}) for thing in objects
            if thing["kind"] == "ConfigMap"}
    found = {}
    for source in container.get("envFrom", []):
        found.update(maps.get(source["configMapRef"]["name"], {}))
    for entry in container.get("env", []):
        field = entry.get("valueFrom", {}).get("resourceFieldRef")
        if field:
            kind, _, name = field["resource"].partition(".")
            found[entry["name"]] = str(-int(-quantity(container["resources"][kind][name]) // 1))
        else:
            found[entry["name"]] = entry.get("value", "")
    return found


def arguments(container, objects):
    """The container's arguments as Kubernetes expands them."""
    known = variables(container, objects)
    return [re.sub(r"\$\((\w+)\)", lambda match: known.get(match[1], match[0]), argument)
            for argument in container.get("args", [])]


def flags(container, objects):
    found = {}
    for argument in arguments(container, objects):
        name, _, value = argument.removeprefix("--").partition("=")
        found[name] = value
    return found


def pods(objects):
    """(object, pod's spec, pod's labels) of everything that runs containers."""
    for thing in objects:
        if thing["kind"] == "Deployment":
            template = thing["spec"]["template"]
            yield thing, template["spec"], template["metadata"].get("labels", {})
        elif thing["kind"] == "ClusterServingRuntime":
            yield thing, thing["spec"], thing["metadata"].get("labels", {})


def confinement(pod, container):
    own = container.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    if both.get("runAsNonRoot") is not True or not both.get("runAsUser"):
        yield "may run as root"
    if own.get("privileged") is not False or own.get("allowPrivilegeEscalation") is not False:
        yield "may be or become privileged"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "its root is not read-only"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield f"capabilities are {own.get('capabilities')}, wanted all dropped and none added"
    if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "has no profile of seccomp"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield "takes a port of the node"


def resources(container):
    limits = container.get("resources", {}).get("limits", {})
    requests = container.get("resources", {}).get("requests", {})
    for name in ("cpu", "memory", "ephemeral-storage"):
        if name not in limits or name not in requests:
            yield f"no request or no limit of {name}"
    if "nvidia.com/gpu" in limits and limits["nvidia.com/gpu"] != requests.get("nvidia.com/gpu"):
        yield "asks for other GPUs than its limit"


def memory_for_flags(container, objects):
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    given = flags(container, objects)
    needed = MEMORY_BESIDE + sum(int(given.get(name, default)) for name, default in BUDGETS.items())
    if limit and quantity(limit) < needed:
        yield f"memory {limit} is less than the budgets of its flags, {needed} bytes"


def threads_for_flags(container, objects):
    cpu = container.get("resources", {}).get("limits", {}).get("cpu")
    threads = flags(container, objects).get("cpu_threads")
    if cpu and threads != str(int(quantity(cpu))):
        yield f"--cpu_threads={threads}, and the limit of cpu is {cpu}"


def probes(container):
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(name)
        if not probe:
            yield f"no {name}"
            continue
        how = probe.get("httpGet") or probe.get("grpc") or probe.get("tcpSocket") or {}
        if how.get("port") not in {*ports, *ports.values()}:
            yield f"{name} asks port {how.get('port')}, which the container does not name"
        if name != "livenessProbe" and "tcpSocket" in probe:
            yield f"{name} asks whether the port is open, not whether models are served"
    if (container.get("livenessProbe") or {}).get("httpGet", {}).get("path") == "/v2/health/ready":
        yield "livenessProbe asks for readiness: a stop would be cut short"


def grace(thing, pod, container, objects):
    if thing["kind"] == "ClusterServingRuntime":  # The InferenceService has it.
        services = [one for one in objects if one["kind"] == "InferenceService"]
        has = min((one["spec"]["predictor"].get("terminationGracePeriodSeconds", GRACE_DEFAULT_S)
                   for one in services), default=GRACE_DEFAULT_S)
    else:
        has = pod.get("terminationGracePeriodSeconds", GRACE_DEFAULT_S)
    given = flags(container, objects)
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    needs = before + seconds(given.get("lame_duck", "2s")) + seconds(given.get("drain_timeout", "30s"))
    if has < needs:
        yield (f"terminationGracePeriodSeconds is {has}; preStop, --lame_duck and --drain_timeout "
               f"take {needs:g}")


def whole_pod(pod):
    for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if pod.get(name):
            yield f"{name} is set"
    if any("hostPath" in volume for volume in pod.get("volumes", [])):
        yield "mounts a path of the node"


def of_pod(thing, pod, objects):
    yield from whole_pod(pod)
    if thing["kind"] == "Deployment" and pod.get("automountServiceAccountToken") is not False:
        yield "mounts a token of Kubernetes' API"
    for container in pod.get("initContainers", []):
        for fault in (*confinement(pod, container), *resources(container)):
            yield f"{container['name']}: {fault}"
    for container in pod["containers"]:
        for fault in (*confinement(pod, container), *resources(container), *probes(container),
                      *memory_for_flags(container, objects), *threads_for_flags(container, objects),
                      *grace(thing, pod, container, objects)):
            yield f"{container['name']}: {fault}"
        if ":" not in container["image"] or container["image"].endswith(":latest"):
            yield f"{container['name']}: image {container['image']} names no version"


def selects(selector, labels):
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def around(deployment, objects):
    """Checks that the objects around a Deployment exist, and select its pods."""
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = {
        "Service": lambda spec: spec.get("selector"),
        "PodDisruptionBudget": lambda spec: spec.get("selector", {}).get("matchLabels"),
        "NetworkPolicy": lambda spec: spec.get("podSelector", {}).get("matchLabels"),
    }
    for kind, selector in selectors.items():
        found = [thing for thing in objects if thing["kind"] == kind]
        if not found:
            yield f"no {kind}"
        for thing in found:
            if not selects(selector(thing["spec"]), labels):
                yield f"{kind} {thing['metadata']['name']} does not select the pods"
    for thing in objects:
        if thing["kind"] == "NetworkPolicy":
            yield from network(thing["spec"], labels)
        if thing["kind"] == "HorizontalPodAutoscaler" and "replicas" in deployment["spec"]:
            yield "has a number of replicas beside an autoscaler"


def network(spec, labels):
    if set(spec.get("policyTypes", [])) != {"Ingress", "Egress"}:
        yield "the network policy leaves a direction open"
    for rule in spec.get("ingress", []):
        if not rule.get("from") or not rule.get("ports"):
            yield "the network policy lets anybody in, or to any port"
        for peer in rule.get("from", []):
            wanted = peer.get("podSelector", {}).get("matchLabels", {})
            if wanted.keys() & labels.keys():
                yield f"the network policy lets in pods of normd itself: {wanted}"


def namespace(objects):
    for thing in objects:
        if thing["kind"] == "Namespace":
            labels = thing["metadata"].get("labels", {})
            if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
                yield "the namespace does not enforce the restricted Pod Security standard"


def faults(objects):
    found = list(namespace(objects))
    running = list(pods(objects))
    if not running:
        found.append("nothing runs normd")
    for thing, pod, _ in running:
        name = f"{thing['kind']} {thing['metadata']['name']}"
        found += [f"{name}: {fault}" for fault in of_pod(thing, pod, objects)]
        if thing["kind"] == "Deployment":
            found += [f"{name}: {fault}" for fault in around(thing, objects)]
    return found

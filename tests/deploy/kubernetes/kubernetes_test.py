#!/usr/bin/env python3
"""deploy/kubernetes and deploy/kserve as kubectl renders them.

Every object passes the strict schemas of the newest Kubernetes that kubernetes-validate knows, or
its definition's (crd.py), and policy.py. Breaking each rule of the policy in a rendering is found.
normd starts with each pod's arguments, its probes answer, and with TLS they answer over it. The
autoscaler's query gives what it should (promtool; else that case is skipped). The component
monitoring scrapes the pods, and its rules and dashboard are those of Prometheus and Grafana. Exits with
77, which ctest shows as skipped, without a kubectl that can render them.
"""

import argparse
import copy
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import kubernetes_validate
import yaml

import crd
import policy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from process import Process  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[3]
DEPLOY = SOURCE / "deploy"
ADAPTER = DEPLOY / "kubernetes/overlays/hpa/adapter_rule.yaml"
OPTIONS = None
SERVING = r"serving: grpc=\S+:(\d+) metrics=\S+:(\d+) http=\S+:(\d+)"


def render(folder):
    made = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        raise AssertionError(f"kubectl kustomize {folder}: {made.stderr}")
    return [thing for thing in yaml.safe_load_all(made.stdout) if thing]


# Where a component is for another overlay than cpu.
OVERLAY_OF = {"runtime-class": "gpu"}


def with_component(component, overlay="cpu"):
    """An overlay with a component, as a user's own kustomization has it."""
    with tempfile.TemporaryDirectory(dir=DEPLOY / "kubernetes", prefix=".test_") as folder:
        pathlib.Path(folder, "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [f"../overlays/{overlay}"], "components": [f"../components/{component}"]}))
        return render(folder)


def renderings():
    made = {"base": render(DEPLOY / "kubernetes/base"), "kserve": render(DEPLOY / "kserve")}
    for overlay in sorted((DEPLOY / "kubernetes/overlays").iterdir()):
        made[overlay.name] = render(overlay)
    for component in sorted((DEPLOY / "kubernetes/components").iterdir()):
        made[component.name] = with_component(component.name,
                                              OVERLAY_OF.get(component.name, "cpu"))
    return made


def schema_faults(thing):
    own = crd.faults(thing)
    if own is not None:
        return own
    try:
        kubernetes_validate.validate(thing, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []  # A kind without a schema raises SchemaNotFoundError.


def pod_of(objects):
    return next(iter(policy.pods(objects)))


class Rendered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = renderings()

    def test_every_object_passes_its_strict_schema(self):
        for name, objects in self.made.items():
            for thing in objects:
                with self.subTest(rendering=name, kind=thing["kind"]):
                    self.assertEqual(schema_faults(thing), [])

    def test_a_misspelt_field_fails_the_schema_of_every_kind(self):
        seen = {}
        for objects in self.made.values():
            for thing in objects:
                seen[thing["kind"]] = thing
        self.assertLessEqual({"Deployment", "ClusterServingRuntime", "InferenceService",
                              "Certificate", "HorizontalPodAutoscaler", "PodMonitor",
                              "PrometheusRule"}, set(seen))
        for kind, thing in seen.items():
            with self.subTest(kind=kind):
                broken = copy.deepcopy(thing)
                broken.get("spec", broken)["replicsa"] = 1
                self.assertNotEqual(schema_faults(broken), [])

    def test_every_rendering_keeps_to_the_policy(self):
        for name, objects in self.made.items():
            with self.subTest(rendering=name):
                self.assertEqual(policy.faults(objects), [])

    def test_the_images_have_the_project_s_version(self):
        version = re.search(r"project\(normd VERSION ([\d.]+)",
                            (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
        for name, objects in self.made.items():
            for _, pod, _ in policy.pods(objects):
                self.assertIn(pod["containers"][0]["image"],
                              (f"normd:{version}", f"normd:{version}-cuda"), name)

    def test_a_change_of_flags_rolls_the_pods(self):
        names = {thing["metadata"]["name"] for thing in self.made["base"]
                 if thing["kind"] == "ConfigMap"}
        _, pod, _ = pod_of(self.made["base"])
        used = {source["configMapRef"]["name"] for source in pod["containers"][0]["envFrom"]}
        self.assertEqual(names, used)
        self.assertTrue(all(re.search(r"-[0-9a-z]{10}$", name) for name in names), names)

    def test_each_flag_of_the_config_map_is_used(self):
        flags = next(thing for thing in self.made["base"] if thing["kind"] == "ConfigMap")["data"]
        _, pod, _ = pod_of(self.made["base"])
        text = " ".join(pod["containers"][0]["args"])
        for name in flags:
            self.assertIn(f"$({name})", text)


class Monitoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = with_component("monitoring")

    def one(self, kind, name="normd"):
        found, = [thing for thing in self.objects
                  if thing["kind"] == kind and thing["metadata"]["name"] == name]
        return found

    def test_it_scrapes_the_pods_at_the_port_of_the_metrics(self):
        deployment, pod, labels = pod_of(self.objects)
        monitor = self.one("PodMonitor")
        self.assertEqual(monitor["metadata"]["namespace"], deployment["metadata"]["namespace"])
        self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(), labels.items())
        endpoint, = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
        self.assertEqual(ports[endpoint["port"]], 8002)
        self.assertEqual(endpoint["path"], "/metrics")

    def test_it_takes_the_scheme_of_the_annotation_that_tls_sets(self):
        endpoint, = self.one("PodMonitor")["spec"]["podMetricsEndpoints"]
        relabeling, = endpoint["relabelings"]
        self.assertEqual(relabeling["targetLabel"], "__scheme__")
        for overlay, scheme in {"cpu": None, "tls": "https"}.items():
            deployment, _, _ = pod_of(with_component("monitoring", overlay))
            given = deployment["spec"]["template"]["metadata"]["annotations"]
            annotations = {
                "__meta_kubernetes_pod_annotation_" + re.sub(r"[^a-zA-Z0-9_]", "_", name): value
                for name, value in given.items()}
            value = ";".join(annotations.get(name, "") for name in relabeling["sourceLabels"])
            found = re.fullmatch(relabeling["regex"], value)
            self.assertEqual(found and found[1], scheme, overlay)

    def test_its_rules_are_those_of_prometheus(self):
        groups = [group for name in ("recording", "alerts") for group in yaml.safe_load(
            (DEPLOY / f"prometheus/rules/normd.{name}.yml").read_text(encoding="utf-8"))["groups"]]
        self.assertEqual(self.one("PrometheusRule")["spec"]["groups"], groups)

    def test_its_dashboard_is_grafana_s_and_has_the_label_of_the_sidecar(self):
        made = self.one("ConfigMap", "normd-dashboard")
        self.assertEqual(made["metadata"]["labels"]["grafana_dashboard"], "1")
        self.assertEqual(made["data"], {"normd.json": (
            DEPLOY / "grafana/dashboards/normd.json").read_text(encoding="utf-8")})


class Addresses(unittest.TestCase):
    def test_the_image_listens_at_every_address_of_both_families(self):
        text = (SOURCE / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
        points = [json.loads(line) for line in re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)]
        self.assertEqual(len(points), 2)
        for point in points:
            with Process(OPTIONS.normd, *(re.sub(r":800[012]$", ":0", argument)
                                          for argument in point[1:]),
                         f"--model_repository={DEPLOY / 'models'}", "--lame_duck=0s") as normd:
                ports = normd.wait_for(SERVING).groups()
                for host in ("127.0.0.1", "::1"):
                    for port in ports:
                        with socket.create_connection((host, port), timeout=10):
                            pass

    def test_the_services_have_both_where_the_cluster_has(self):
        for thing in render(DEPLOY / "kubernetes/base"):
            if thing["kind"] == "Service":
                self.assertEqual(thing["spec"]["ipFamilyPolicy"], "PreferDualStack")


class RuntimeClass(unittest.TestCase):
    def test_the_overlay_gpu_names_one_only_with_the_component(self):
        self.assertNotIn("runtimeClassName", pod_of(render(DEPLOY / "kubernetes/overlays/gpu"))[1])
        self.assertEqual(pod_of(with_component("runtime-class", "gpu"))[1]["runtimeClassName"],
                         "nvidia")


# What to do to a rendering, and what policy.py has to say then.
def breaches():
    def container(change):
        return lambda objects: change(pod_of(objects)[1]["containers"][0])

    def pod(change):
        return lambda objects: change(pod_of(objects)[1])

    def kind(name, change):
        return lambda objects: [change(thing["spec"]) for thing in objects if thing["kind"] == name]

    def flag(name, value):
        return container(lambda c: c["args"].append(f"--{name}={value}"))

    security = lambda c: c["securityContext"]  # noqa: E731
    limits = lambda c: c["resources"]["limits"]  # noqa: E731
    return {
        "root": (pod(lambda p: p["securityContext"].pop("runAsNonRoot")), "as root"),
        "uid 0": (container(lambda c: security(c).update(runAsUser=0)), "as root"),
        "privileged": (container(lambda c: security(c).update(privileged=True)), "privileged"),
        "escalation": (container(lambda c: security(c).pop("allowPrivilegeEscalation")), "privileged"),
        "writable": (container(lambda c: security(c).pop("readOnlyRootFilesystem")), "read-only"),
        "capability": (container(lambda c: security(c)["capabilities"].update(add=["NET_ADMIN"])),
                       "capabilities"),
        "seccomp": (pod(lambda p: p["securityContext"].pop("seccompProfile")), "seccomp"),
        "host port": (container(lambda c: c["ports"][0].update(hostPort=8001)), "port of the node"),
        "host network": (pod(lambda p: p.update(hostNetwork=True)), "hostNetwork"),
        "host path": (pod(lambda p: p.update(volumes=[{"name": "a", "hostPath": {"path": "/"}}])),
                      "path of the node"),
        "token": (pod(lambda p: p.pop("automountServiceAccountToken")), "token"),
        "no limit": (container(lambda c: limits(c).pop("memory")), "memory"),
        "little memory": (container(lambda c: limits(c).update(memory="1Gi")), "less than the budgets"),
        "large budget": (flag("max_inflight_bytes", 2**34), "less than the budgets"),
        "threads": (flag("cpu_threads", 64), "--cpu_threads=64"),
        "no startup probe": (container(lambda c: c.pop("startupProbe")), "no startupProbe"),
        "a probe's port": (container(lambda c: c["readinessProbe"]["httpGet"].update(port=9)), "port 9"),
        "liveness": (container(lambda c: c["livenessProbe"]["httpGet"].update(path="/v2/health/ready")),
                     "cut short"),
        "grace": (pod(lambda p: p.update(terminationGracePeriodSeconds=30)), "take 45"),
        "default grace": (pod(lambda p: p.pop("terminationGracePeriodSeconds")), "is 30"),
        "drain": (flag("drain_timeout", "5m"), "take 315"),
        "latest": (container(lambda c: c.update(image="normd:latest")), "no version"),
        "service": (kind("Service", lambda s: s.update(selector={"a": "b"})), "does not select"),
        "budget": (kind("PodDisruptionBudget", lambda s: s.pop("selector")), "does not select"),
        "anybody": (kind("NetworkPolicy", lambda s: s["ingress"].append({})), "anybody"),
        "egress": (kind("NetworkPolicy", lambda s: s["policyTypes"].remove("Egress")), "open"),
        "own pods": (kind("NetworkPolicy", lambda s: s["ingress"][0]["from"][0]["podSelector"]
                          ["matchLabels"].update({"app.kubernetes.io/name": "normd"})), "normd itself"),
        "namespace": (lambda objects: [thing["metadata"]["labels"].clear() for thing in objects
                                       if thing["kind"] == "Namespace"], "Pod Security"),
    }


class Policy(unittest.TestCase):
    def test_each_breach_is_found(self):
        base = render(DEPLOY / "kubernetes/base")
        for name, (breach, said) in breaches().items():
            with self.subTest(breach=name):
                broken = copy.deepcopy(base)
                breach(broken)
                found = policy.faults(broken)
                self.assertTrue(any(said in fault for fault in found), (said, found))

    def test_a_fixed_number_beside_an_autoscaler_is_found(self):
        objects = render(DEPLOY / "kubernetes/overlays/hpa")
        pod_of(objects)[0]["spec"]["replicas"] = 3
        self.assertIn("autoscaler", " ".join(policy.faults(objects)))

    def test_an_inference_service_with_little_grace_is_found(self):
        objects = render(DEPLOY / "kserve")
        for thing in objects:
            if thing["kind"] == "InferenceService":
                thing["spec"]["predictor"].pop("terminationGracePeriodSeconds")
        self.assertIn("take 45", " ".join(policy.faults(objects)))


class Server:
    """normd with what a pod passes, on free ports of loopback."""

    def __init__(self, objects, certificates=None):
        self.container = pod_of(objects)[1]["containers"][0]
        given = ["--http_listen=[::]:8000", "--listen=[::]:8001", "--metrics_listen=[::]:8002",
                 "--insecure",
                 *policy.arguments(self.container, objects), "--listen=127.0.0.1:0",
                 f"--model_repository={DEPLOY / 'models'}", "--metrics_listen=127.0.0.1:0",
                 "--http_listen=127.0.0.1:0",
                 "--device=cpu", "--lame_duck=100ms"]
        if certificates:
            given = [part.replace("/tls/tls.", f"{certificates}/server.") for part in given]
        assert "$(" not in " ".join(given), given
        self.process = Process(OPTIONS.normd, *given)

    def __enter__(self):
        self.process.__enter__()
        try:
            found = self.process.wait_for(SERVING)
        except BaseException:
            self.process.__exit__()
            raise
        self.ports = {8001: int(found[1]), 8002: int(found[2]), 8000: int(found[3])}
        return self

    def __exit__(self, *_):
        self.process.__exit__()

    def probe(self, probe, context):
        """The HTTP status that the probe gets, or what normctl says to one of gRPC's."""
        names = {port.get("name"): port["containerPort"] for port in self.container["ports"]}
        how = probe.get("httpGet") or probe.get("grpc") or probe["tcpSocket"]
        port = self.ports[names.get(how["port"], how["port"])]
        if "httpGet" in probe:
            url = f"{how.get('scheme', 'HTTP').lower()}://127.0.0.1:{port}{how['path']}"
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:
                return answer.status
        if "grpc" in probe:
            return subprocess.run([OPTIONS.normctl, "health", f"--server=127.0.0.1:{port}"],
                                  capture_output=True, text=True, check=True).stdout.strip()
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            return "open"


class Served(unittest.TestCase):
    def check(self, objects, certificates=None, context=None):
        with Server(objects, certificates) as server:
            for name in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertIn(server.probe(server.container[name], context),
                              (200, "SERVING", "open"), name)
        self.assertEqual(server.process.exit_code, 0)

    def test_starts_with_each_pod_s_arguments_and_its_probes_answer(self):
        for name, objects in renderings().items():
            if name != "tls":
                with self.subTest(rendering=name):
                    self.check(objects)

    def test_probes_answer_over_tls(self):
        context = ssl.create_default_context()
        context.check_hostname = False  # As kubelets do.
        context.verify_mode = ssl.CERT_NONE
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([DEPLOY / "make_certificates.sh", f"--dir={folder}", "--host=localhost"],
                           check=True, capture_output=True)
            pathlib.Path(folder, "server.key").chmod(0o440)  # The mode of the mounted secret.
            self.check(render(DEPLOY / "kubernetes/overlays/tls"), folder, context)


RULES_TEST = """
rule_files: [rules.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {{ series: 'normd_saturation_ratio{{{a}}}', values: '0x30 0.6 0.8 0.6 0.8 0.6 0.8 0.6 0.8 0.6 0.8' }}
      - {{ series: 'normd_saturation_ratio{{{b}}}', values: '0x40' }}
    promql_expr_test:
      - expr: abs(saturation - 0.7) < bool 0.05
        eval_time: 10m
        exp_samples:
          - {{ labels: '{{{a}}}', value: 1 }}
          - {{ labels: '{{{b}}}', value: 0 }}
"""


class Autoscaler(unittest.TestCase):
    def test_the_query_gives_a_minute_s_mean_of_a_busy_pod_and_zero_of_an_idle_one(self):
        promtool = shutil.which("promtool", path=f"{OPTIONS.promtool_path}:{os.environ['PATH']}")
        if not promtool:
            self.skipTest("no promtool")
        rule, = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"]["custom"]
        query = rule["metricsQuery"]
        for name, value in {"Series": "normd_saturation_ratio", "GroupBy": "namespace,pod",
                            "LabelMatchers": 'namespace="normd",pod=~"a|b"'}.items():
            query = query.replace(f"<<.{name}>>", value)
        labels = {pod: f'namespace="normd",pod="{pod}"' for pod in "ab"}
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "rules.yml").write_text(yaml.safe_dump(
                {"groups": [{"name": "a", "rules": [{"record": "saturation", "expr": query}]}]}))
            pathlib.Path(folder, "test.yml").write_text(RULES_TEST.format(**labels))
            told = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=folder,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)

    def test_it_asks_for_the_metric_of_the_rule(self):
        rule, = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"]["custom"]
        scaler = next(thing for thing in render(DEPLOY / "kubernetes/overlays/hpa")
                      if thing["kind"] == "HorizontalPodAutoscaler")
        asked = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]
                 if metric["type"] == "Pods"]
        self.assertEqual(asked, [rule["name"]["as"]])


def kubectl_fault():
    """Says why kubectl cannot render these files; None if it can."""
    if shutil.which("kubectl") is None:
        return "no kubectl"
    # Older ones (Debian's is 1.20) carry a kustomize without components and templates' labels.
    version = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True,
                             text=True, check=True).stdout
    minor = int(re.match(r"\d+", json.loads(version)["clientVersion"]["minor"])[0])
    return None if minor >= 26 else f"kubectl 1.{minor}, wanted 1.26 or newer"


def main():
    global OPTIONS
    if fault := kubectl_fault():
        print(f"skipped: {fault}")
        sys.exit(77)
    parser = argparse.ArgumentParser()
    parser.add_argument("--normd", required=True)
    parser.add_argument("--normctl", required=True)
    parser.add_argument("--promtool_path", default=SOURCE / "build/tools/prometheus/usr/bin")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()

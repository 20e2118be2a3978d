#!/usr/bin/env python3
"""deploy/compose.yaml against the files and names that it refers to.

Docker's own `compose config` needs its plugin; this needs PyYAML (Debian: python3-yaml), and exits
with 77, which ctest shows as skipped, without it.
"""

import pathlib
import re
import sys

try:
    import yaml
except ImportError:
    print("skipped: no PyYAML (Debian's package python3-yaml)")
    sys.exit(77)

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
PROFILE = "seccomp=seccomp.json"
NO_NEW_PRIVILEGES = "no-new-privileges:true"
LIMITS = ["mem_limit", "memswap_limit", "pids_limit"]
# Its image is root and sets capabilities of a file of its own.
NOT_CONFINED = {"dcgm-exporter"}


class Loader(yaml.SafeLoader):
    """With Compose's tag for what replaces a list of the file below instead of adding to it."""


class Override(list):
    pass


Loader.add_constructor("!override",
                       lambda loader, node: Override(loader.construct_sequence(node)))


def load(path):
    return yaml.load((DEPLOY / path).read_text(encoding="utf-8"), Loader)


def check_image(name, service, faults):
    """Ours, or ${VARIABLE:-image:version}, so that a digest can take its place."""
    image = service.get("image", "")
    if "build" in service:
        context = service["build"]["context"]
        if not (DEPLOY / context / "Dockerfile").is_file():
            faults.append(f"{name}: build: no Dockerfile in {context}")
        args, revision = service["build"].get("args", {}), "${REVISION:-unknown}"
        if service["build"].get("target") is None and args.get("REVISION") != revision:
            faults.append(f"{name}: build: REVISION {args.get('REVISION')!r}, wanted {revision!r}")
    elif image != "normd" and not re.fullmatch(
            r"\$\{[A-Z_]+_IMAGE:-[\w./-]+:[\w.-]*\d[\w.-]*\}", image):
        faults.append(f"{name}: image {image!r}, wanted ${{NAME_IMAGE:-image:fixed version}}")


def check_pins(files, faults):
    """deploy/README.md pins each image that has a variable, and the Dockerfile's defaults are the
    same ones."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    for path in files:
        for variable, image in re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}",
                                          (DEPLOY / path).read_text(encoding="utf-8")):
            if not re.search(rf"pin {variable} +{re.escape(image)}$", text, re.MULTILINE):
                faults.append(f"README.md: no line 'pin {variable} {image}'")
            argument = variable.removesuffix("_IMAGE")
            default = re.search(rf"^ARG {argument}=(.*)$", dockerfile, re.MULTILINE)
            if default and default.group(1) != image:
                faults.append(f"{path}: {variable} is {image}, in the Dockerfile "
                              f"{default.group(1)}")


def check_confinement(name, service, faults):
    faults.extend(f"{name}: no {limit}" for limit in LIMITS if limit not in service)
    if service.get("mem_limit") != service.get("memswap_limit"):
        faults.append(f"{name}: memswap_limit is not mem_limit: it swaps")
    if "nofile" not in service.get("ulimits", {}):
        faults.append(f"{name}: no ulimit nofile")
    # A quota would only slow the server down: it has a thread for each core that it sees.
    if name != "normd" and "cpus" not in service:
        faults.append(f"{name}: no cpus")
    if name in NOT_CONFINED:
        return
    if service.get("read_only") is not True:
        faults.append(f"{name}: its root is not read_only")
    if service.get("cap_drop") != ["ALL"] or "cap_add" in service:
        faults.append(f"{name}: has capabilities")
    options = service.get("security_opt", [])
    if NO_NEW_PRIVILEGES not in options:
        faults.append(f"{name}: security_opt has no {NO_NEW_PRIVILEGES}")
    if service["image"] == "normd" and PROFILE not in options:
        faults.append(f"{name}: security_opt has no {PROFILE}")
    if service.get("user", "").split(":")[0] in ("root", "0") or service.get("privileged"):
        faults.append(f"{name}: is root or privileged")


def check_stop(service, faults):
    """Docker waits longer than the server takes at most."""
    flags = (DEPLOY.parent / "server/config/flags.cc").read_text(encoding="utf-8")
    seconds = sum(int(re.search(rf"&c\.{name}, absl::Seconds\((\d+)\)", flags).group(1))
                  for name in ("lame_duck", "drain_timeout"))
    if int(service["stop_grace_period"].removesuffix("s")) <= seconds:
        faults.append(f"normd: stop_grace_period, wanted more than {seconds}s")


def check_service(name, service, volumes, faults):
    check_image(name, service, faults)
    check_confinement(name, service, faults)
    for port in service.get("ports", []):
        if not port.startswith("127.0.0.1:"):
            faults.append(f"{name}: port {port!r}, wanted one on the loopback interface")
    for mount in service.get("volumes", []):
        source, _, rest = mount.partition(":")
        if source.startswith("."):
            if not (DEPLOY / source).is_dir():
                faults.append(f"{name}: volume: no folder {source}")
            if not rest.endswith(":ro"):
                faults.append(f"{name}: volume {mount!r}, wanted it read-only")
        elif source not in volumes:
            faults.append(f"{name}: volume {source!r} is not declared")


def check_addresses(services, faults):
    """What the configurations call must be a service of this file."""
    scrapes = load("prometheus/prometheus.yml")["scrape_configs"]
    hosts = [target.split(":")[0] for scrape in scrapes for config in scrape["static_configs"]
             for target in config["targets"]]
    sources = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    hosts += [re.fullmatch(r"http://([\w-]+):\d+", source["url"]).group(1) for source in sources]
    hosts += [argument.split("=")[1].split(":")[0]
              for service in services.values() for argument in service.get("command", [])
              if argument.startswith("--server=")]
    faults.extend(f"no service {host!r}, which is called" for host in hosts if host not in services)
    for name, service in services.items():
        faults.extend(f"{name}: depends on {other!r}, which is no service"
                      for other in service.get("depends_on", []) if other not in services)
    provider = load("grafana/provisioning/dashboards/normd.yml")["providers"][0]["options"]["path"]
    if not any(mount.startswith("./grafana/dashboards:" + provider)
               for mount in services["grafana"]["volumes"]):
        faults.append(f"grafana: the dashboards are not mounted at {provider}")


def check_models(services, faults):
    mix = next(argument for argument in services["normload"]["command"] if "--mix=" in argument)
    for entry in mix.removeprefix("--mix=").split(","):
        if not (DEPLOY / "models" / entry.split(":")[0]).is_dir():
            faults.append(f"normload: no demo model {entry.split(':')[0]!r}")


def check_gpu(services, faults):
    """compose.gpu.yaml changes services of compose.yaml and builds a target of the Dockerfile."""
    gpu = load("compose.gpu.yaml")["services"]
    faults.extend(f"compose.gpu.yaml: no service {name!r} in compose.yaml"
                  for name in gpu if name not in services)
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    if len(re.findall(r"^USER 10001:10001$", dockerfile, re.MULTILINE)) != 2:
        faults.append("Dockerfile: wanted USER 10001:10001 in both images")
    target = gpu["normd"]["build"]["target"]
    if not re.search(rf"^FROM .* AS {re.escape(target)}$", dockerfile, re.MULTILINE):
        faults.append(f"compose.gpu.yaml: the Dockerfile has no target {target!r}")
    if gpu["normd"]["security_opt"] != Override([NO_NEW_PRIVILEGES]) \
            or not isinstance(gpu["normd"]["security_opt"], Override):
        faults.append("compose.gpu.yaml: normd: security_opt, wanted !override and "
                      f"{NO_NEW_PRIVILEGES}: CUDA's driver does not work under {PROFILE}")
    images = {service["image"] for service in gpu.values()}
    if len(images) != 1:
        faults.append(f"compose.gpu.yaml: images {sorted(images)}, wanted one")


def main():
    compose = load("compose.yaml")
    services = compose["services"]
    faults = []
    for name, service in services.items():
        check_service(name, service, compose.get("volumes", {}), faults)
    check_addresses(services, faults)
    check_models(services, faults)
    check_pins(["compose.yaml", "compose.gpu.yaml"], faults)
    check_stop(services["normd"], faults)
    check_gpu(services, faults)
    print("\n".join(faults) or f"{len(services)} services")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

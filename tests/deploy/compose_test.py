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


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


def check_service(name, service, volumes, faults):
    image = service.get("image", "")
    if "build" in service:
        if not (DEPLOY / service["build"] / "Dockerfile").is_file():
            faults.append(f"{name}: build: no Dockerfile in {service['build']}")
    elif image != "normd" and not re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", image):
        faults.append(f"{name}: image {image!r}, wanted one with a fixed version")
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
    target = gpu["normd"]["build"]["target"]
    if not re.search(rf"^FROM .* AS {re.escape(target)}$", dockerfile, re.MULTILINE):
        faults.append(f"compose.gpu.yaml: the Dockerfile has no target {target!r}")
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
    check_gpu(services, faults)
    print("\n".join(faults) or f"{len(services)} services")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

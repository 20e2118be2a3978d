#!/usr/bin/env python3
"""deploy/proxy/envoy.yaml as the protocol buffers that Envoy reads it into.

Every field is known and of its type, also below each "@type", and the addresses, times and checks are what
deploy/proxy/envoy.yaml says they are for. Breaking it is found. Envoy itself is not run.
"""

import copy
import importlib
import pathlib
import sys
import unittest

import yaml
from google.protobuf import json_format

# What an Any in the file may hold; importing a module makes its types known.
for module in ("envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2",
               "envoy.extensions.filters.http.router.v3.router_pb2",
               "envoy.extensions.retry.host.previous_hosts.v3.previous_hosts_pb2",
               "envoy.extensions.upstreams.http.v3.http_protocol_options_pb2"):
    importlib.import_module(module)
from envoy.config.bootstrap.v3 import bootstrap_pb2  # noqa: E402

FILE = pathlib.Path(__file__).resolve().parents[3] / "deploy/proxy/envoy.yaml"


def parse(text):
    return json_format.ParseDict(text, bootstrap_pb2.Bootstrap())


class Envoy(unittest.TestCase):
    def setUp(self):
        self.text = yaml.safe_load(FILE.read_text(encoding="utf-8"))

    def test_every_field_is_one_of_envoy_s(self):
        bootstrap = parse(self.text)
        cluster, = bootstrap.static_resources.clusters
        self.assertEqual(cluster.lb_policy, cluster.LEAST_REQUEST)
        self.assertTrue(cluster.health_checks[0].HasField("grpc_health_check"))
        self.assertEqual(len(bootstrap.static_resources.listeners), 1)

    def test_the_route_leads_to_the_cluster_that_is_there(self):
        manager = self.text["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        host, = manager["typed_config"]["route_config"]["virtual_hosts"]
        names = {cluster["name"] for cluster in self.text["static_resources"]["clusters"]}
        self.assertEqual({route["route"]["cluster"] for route in host["routes"]}, names)

    def test_a_field_that_envoy_does_not_have_is_found_wherever_it_is(self):
        def places(node, path=()):
            if isinstance(node, dict):
                yield path
                for key, value in node.items():
                    yield from places(value, (*path, key))
            if isinstance(node, list):
                for i, value in enumerate(node):
                    yield from places(value, (*path, i))

        found = list(places(self.text))
        self.assertGreater(len(found), 30)
        for path in found:
            broken = copy.deepcopy(self.text)
            node = broken
            for step in path:
                node = node[step]
            node["no_such_field"] = 1
            with self.subTest(path=path), self.assertRaises(json_format.ParseError):
                parse(broken)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))

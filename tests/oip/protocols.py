"""tritonclient's clients for gRPC and HTTP behind one face: a test that asks one can ask the other.

Answers are dictionaries of plain values, with what HTTP writes: numbers instead of protobuf's texts of
numbers, no wrappers, nothing that is empty. Refusals are "CODE: message" with gRPC's names.
"""

import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

# What docs/open_inference_protocol.md says of each code.
STATUSES = {"INVALID_ARGUMENT": 400, "OUT_OF_RANGE": 400, "FAILED_PRECONDITION": 409,
            "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409,
            "ABORTED": 409, "RESOURCE_EXHAUSTED": 429, "CANCELLED": 499, "INTERNAL": 500,
            "UNIMPLEMENTED": 501, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504}


def plain(value):
    """Without what is empty or an enum's first value, and with numbers for their texts."""
    if isinstance(value, dict):
        plains = {key: plain(one) for key, one in value.items()}
        return {key: one for key, one in plains.items() if one not in (0, "", "REJECT", [], {}, None)}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return value


def refusal(call):
    """(code, message) of a call that should fail: gRPC's name, HTTP's number; "OK" if it does not."""
    try:
        call()
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode."), error.message()
    return "OK", "accepted what is wrong"


class Protocol:
    """Inputs and outputs are tritonclient's; `infer` returns its result, which `described` reads."""

    def __init__(self, module, address, **options):
        self.module = module
        self.client = module.InferenceServerClient(address, **options)

    def close(self):
        self.client.close()

    def input(self, x, datatype="FP32", name="x", **how):
        tensor = self.module.InferInput(name, list(x.shape), datatype)
        tensor.set_data_from_numpy(x, **how)
        return tensor

    def shared_input(self, shape, region, size, offset=0, datatype="FP32", name="x"):
        tensor = self.module.InferInput(name, list(shape), datatype)
        tensor.set_shared_memory(region, size, offset=offset)
        return tensor

    def output(self, name="y", shared=None, **how):
        output = self.module.InferRequestedOutput(name, **how)
        if shared is not None:
            output.set_shared_memory(*shared)
        return output

    def infer(self, model, inputs, **options):
        return self.client.infer(model, inputs, **options)


class Grpc(Protocol):
    name = "gRPC"

    def __init__(self, server, **options):
        super().__init__(tritonclient.grpc, server.address, **options)

    def input(self, x, datatype="FP32", name="x", **how):
        return super().input(x, datatype, name)  # Always binary.

    def output(self, name="y", shared=None, binary_data=True, **how):
        return super().output(name, shared, **how)

    def described(self, result):
        return plain(json_format.MessageToDict(result.get_response(), preserving_proto_field_name=True)
                     | {"raw_output_contents": None, "outputs": [
                         {"name": o.name, "datatype": o.datatype, "shape": list(o.shape),
                          "parameters": {key: getattr(one, one.WhichOneof("parameter_choice"))
                                         for key, one in o.parameters.items()}}
                         for o in result.get_response().outputs]})

    def compressed(self, model, inputs, algorithm):
        return self.client.infer(model, inputs, compression_algorithm=algorithm)

    def server(self):
        return plain(self.client.get_server_metadata(as_json=True))

    def model(self, name):
        return plain(self.client.get_model_metadata(name, as_json=True))

    def config(self, name):
        return plain(self.client.get_model_config(name, as_json=True)["config"])

    def index(self):
        return plain(self.client.get_model_repository_index(as_json=True)["models"])

    def statistics(self, name=""):
        return plain(self.client.get_inference_statistics(name, as_json=True)["model_stats"])

    def regions(self):
        regions = self.client.get_system_shared_memory_status(as_json=True).get("regions", {})
        return plain(sorted(regions.values(), key=lambda region: region["name"]))

    def trace(self):
        settings = self.client.get_trace_settings(as_json=True)["settings"]
        return plain({key: one.get("value") for key, one in settings.items()})

    def log(self):
        settings = self.client.get_log_settings(as_json=True)["settings"]
        return plain({key: next(iter(one.values())) for key, one in settings.items()})


class Http(Protocol):
    name = "HTTP"

    def __init__(self, server, **options):
        super().__init__(tritonclient.http, server.http, **options)

    def described(self, result):
        described = plain(result.get_response())
        for output in described["outputs"]:
            output.pop("data", None)
            output.get("parameters", {}).pop("binary_data_size", None)
        return plain(described)

    def compressed(self, model, inputs, algorithm):
        return self.client.infer(model, inputs, request_compression_algorithm=algorithm,
                                 response_compression_algorithm=algorithm)

    def server(self):
        return plain(self.client.get_server_metadata())

    def model(self, name):
        return plain(self.client.get_model_metadata(name))

    def config(self, name):
        return plain(self.client.get_model_config(name))

    def index(self):
        return plain(self.client.get_model_repository_index())

    def statistics(self, name=""):
        return plain(self.client.get_inference_statistics(name)["model_stats"])

    def regions(self):
        return plain(sorted(self.client.get_system_shared_memory_status(),
                            key=lambda region: region["name"]))

    def trace(self):
        return plain(self.client.get_trace_settings())

    def log(self):
        return plain(self.client.get_log_settings())

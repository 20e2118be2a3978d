"""What the rules and the dashboard count as a request.

make_rules.py and make_dashboard.py read this. A test holds METHODS against those that the server
itself counts as inference.
"""

# Values of the label `method`. One of STREAMS lasts as long as its client takes, so it has no
# latency objective. A request of ModelStreamInfer counts for itself and ends with its response.
# Infer is HTTP's.
METHODS = ["Normalize", "NormalizeStream", "ModelInfer", "ModelStreamInfer", "Infer"]
STREAMS = ["NormalizeStream"]

# The codes that are a fault of the service. What the client did wrong is none.
FAULTS = ["INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "RESOURCE_EXHAUSTED",
          "DEADLINE_EXCEEDED"]

ALL = "|".join(METHODS)
ANSWERED = "|".join(method for method in METHODS if method not in STREAMS)
FAULT = "|".join(FAULTS)

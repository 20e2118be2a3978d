#!/usr/bin/env python3
"""Prints the latency histograms of a normd scrape: curl -s localhost:8002/metrics | latency_table.py

One line per series of normd_request_duration_seconds and normd_stage_duration_seconds that counted
anything. Percentiles are read off the buckets as PromQL's histogram_quantile does, by linear
interpolation within the bucket; the mean is exact.
"""

import collections
import re
import sys

SAMPLE = re.compile(r"(normd_(?:request|stage)_duration_seconds)_(bucket|sum|count)"
                    r"\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
STAGES = ["decode", "queue", "gather", "copy_in", "compute", "copy_out", "encode"]


class Histogram:
    def __init__(self):
        self.buckets = []  # (upper bound, cumulative count)
        self.sum = 0.0
        self.count = 0.0

    def quantile(self, q):
        """Seconds, and whether the value lies beyond the last finite bound."""
        rank = q * self.count
        lower, below = 0.0, 0.0
        for bound, cumulative in sorted(self.buckets):
            if cumulative >= rank and cumulative > below:
                if bound == float("inf"):
                    return lower, True
                return lower + (bound - lower) * (rank - below) / (cumulative - below), False
            lower, below = bound, cumulative
        return lower, True


def parse(text):
    histograms = collections.defaultdict(Histogram)
    for name, kind, labels, value in SAMPLE.findall(text):
        labels = dict(LABEL.findall(labels))
        bound = labels.pop("le", None)
        histogram = histograms[name, labels.get("model") or "-",
                               labels.get("method") or labels.get("stage", "")]
        if kind == "bucket":
            histogram.buckets.append((float(bound), float(value)))
        elif kind == "sum":
            histogram.sum = float(value)
        else:
            histogram.count = float(value)
    return {key: histogram for key, histogram in histograms.items() if histogram.count > 0}


def show(seconds, beyond=False):
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if seconds < limit:
            return f"{'>' if beyond else ''}{seconds * scale:.3g} {unit}"
    return "?"


def order(key):
    name, model, what = key
    return (model, name != "normd_request_duration_seconds",
            STAGES.index(what) if what in STAGES else -1, what)


def main():
    histograms = parse(sys.stdin.read())
    if not histograms:
        sys.exit("latency_table: no latency histogram of normd with a count in the input")
    print(f"{'model':28}{'what':18}{'count':>8}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}")
    for key in sorted(histograms, key=order):
        name, model, what = key
        histogram = histograms[key]
        if name == "normd_stage_duration_seconds":
            what = "  " + what
        columns = [show(histogram.sum / histogram.count)]
        columns += [show(*histogram.quantile(q)) for q in (0.5, 0.9, 0.99)]
        print(f"{model:28}{what:18}{histogram.count:8.0f}" + "".join(f"{c:>10}" for c in columns))


if __name__ == "__main__":
    main()

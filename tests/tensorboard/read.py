"""Prints what TensorBoard reads in a folder of event files, as JSON.

    python read.py FOLDER

{"scalars": {tag: [[step, value], ...]}, "histograms": {tag: [[step, [count, ...]], ...]}, "texts": {tag: text}}
Exits with 3 if this Python has no TensorBoard.
"""

import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)

# 0 keeps all, where by default a sample is kept.
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "tensors": 0}, purge_orphaned_data=False)
events.Reload()
tags = events.Tags()
read = {
    "scalars": {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {
        tag: [[event.step, event.histogram_value.bucket] for event in events.Histograms(tag)] for tag in tags["histograms"]
    },
    "texts": {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]},
}
json.dump(read, sys.stdout)

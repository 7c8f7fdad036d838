#!/usr/bin/env python3
"""What a Perfetto trace says, read by Perfetto's own messages (PyPI package perfetto): one JSON object.

Names are looked up in the interned data; slices are checked to nest, track by track, in order of time.
"""
import collections
import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2

trace = perfetto_trace_pb2.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
names, notes, categories, tracks = {}, {}, {}, {}
defaults_clock = None
events = []
for packet in trace.packet:
    for entry in packet.interned_data.event_names:
        names[entry.iid] = entry.name
    for entry in packet.interned_data.debug_annotation_names:
        notes[entry.iid] = entry.name
    for entry in packet.interned_data.event_categories:
        categories[entry.iid] = entry.name
    if packet.HasField("trace_packet_defaults"):
        defaults_clock = packet.trace_packet_defaults.timestamp_clock_id
    if packet.HasField("track_descriptor"):
        tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    if packet.HasField("track_event"):
        events.append((packet.timestamp, packet.track_event))

events.sort(key=lambda e: e[0])  # stable: as the viewer sorts
Event = perfetto_trace_pb2.TrackEvent
functions = collections.defaultdict(lambda: {"calls": 0, "points": 0, "self_ns": 0, "total_ns": 0, "packets": set()})
open_slices = collections.defaultdict(list)
packets, flows, counters, lost = set(), collections.Counter(), collections.defaultdict(list), 0
unknown_tracks = wrong_ends = 0
for at, event in events:
    unknown_tracks += event.track_uuid not in tracks
    answer = {notes[a.name_iid]: (a.string_value if a.HasField("string_value") else a.int_value) for a in event.debug_annotations}
    name = names.get(event.name_iid, event.name)
    kind = categories[event.category_iids[0]] if event.category_iids else None
    for flow in event.flow_ids:
        flows[flow] += 1
    if event.type == Event.TYPE_COUNTER:
        counters[tracks[event.track_uuid].name].append(event.counter_value)
    elif event.type == Event.TYPE_SLICE_END:
        if not open_slices[event.track_uuid]:
            wrong_ends += 1
            continue
        began, kind, name, answer = open_slices[event.track_uuid].pop()
        if kind == "call":
            functions[name]["total_ns"] += at - began
            wrong_ends += at - began < answer["self_ns"]
    else:
        if kind == "packet":
            packets.add(answer["packet"])
        if kind == "loss":
            lost += answer["count"]
        if kind in ("call", "point"):
            f = functions[name]
            f["calls" if kind == "call" else "points"] += 1
            f["self_ns"] += answer.get("self_ns", 0)
        if event.type == Event.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append((at, kind, name, answer))
print(json.dumps({
    "functions": {n: {k: v for k, v in f.items() if k != "packets"} for n, f in functions.items()},
    "packets": sorted(packets),
    "flows": {str(k): v for k, v in flows.items()},
    "counters": {k: {"most": max(v), "last": v[-1]} for k, v in counters.items()},
    "lost": lost,
    "tracks": sorted(t.name for t in tracks.values()),
    "open": sum(len(o) for o in open_slices.values()),
    "wrong_ends": wrong_ends,
    "unknown_tracks": unknown_tracks,
    "clock": defaults_clock,
}))

"""PX4 logs: every field equals pyulog's, integers are exact, and data that pyulog silently ignores are named."""

import resource
import struct
import time

import numpy as np
import pytest
from damage import damage
from robocache.ingest import registry, ulog
from yields import Yields, outcome

import robocache
from tests.soak import rounds

pyulog = pytest.importorskip("pyulog")

LOGS = ("sample_log_small", "sample_appended_multiple", "sample_px4_events", "sample_logging_tagged_and_default_params")


# ---- synthetic logs ----


def message(kind, payload=b""):
    return struct.pack("<HB", len(payload), ord(kind)) + payload


def header(start_us=1000, appended=None):
    flags = bytes(8) + bytes([1 if appended else 0]) + bytes(7) + struct.pack("<3Q", *(*(appended or ()), 0, 0, 0)[:3])
    return b"ULog\x01\x12\x35\x01" + struct.pack("<Q", start_us) + message("B", flags)


def format_message(text):
    return message("F", text.encode())


def announce(id, name, multi_id=0):
    return message("A", struct.pack("<BH", multi_id, id) + name.encode())


def data(id, stamp_us, layout="", *values):
    return message("D", struct.pack(f"<HQ{layout}", id, stamp_us, *values))


def information(kind, type, key, value, flags=b""):
    text = f"{type} {key}".encode()
    return message(kind, flags + bytes([len(text)]) + text + value)


def write_log(tmp_path, *messages, name="log.ulg"):
    path = tmp_path / name
    path.write_bytes(header() + b"".join(messages) if not messages[0].startswith(b"ULog") else b"".join(messages))
    return path


SYNC = message("S", b"\x2f\x73\x13\x20\x25\x0c\xbb\x12")
XY = format_message("xy:uint64_t timestamp;float x;float y;") + announce(0, "xy")


def test_nested_and_array_fields_have_names_and_padding_is_dropped(tmp_path):
    log = write_log(
        tmp_path,
        format_message("inner:uint8_t a;uint8_t[3] _padding0;float[2] b;"),
        format_message("outer:uint64_t timestamp;inner[2] part;inner one;bool ok;uint8_t[5] _padding1;"),
        announce(3, "outer", 2),
        data(3, 5, "B3x2fB3x2fB3x2f?", 1, 0.5, 1.5, 2, 2.5, 3.5, 255, -1.0, -2.0, True),
        data(3, 6, "B3x2fB3x2fB3x2f?5x", 4, 0.5, 1.5, 2, 2.5, 3.5, 255, -1.0, -2.0, False),
    )
    yields = Yields("ulog", log)
    time_ns, values = yields.only()["outer.2"]
    assert time_ns.tolist() == [5000, 6000]
    assert values.dtype == np.float32
    assert values.tolist() == [[1, 0.5, 1.5, 2, 2.5, 3.5, 255, -1, -2, 1], [4, 0.5, 1.5, 2, 2.5, 3.5, 255, -1, -2, 0]]
    assert yields.facts["outer.2"]["names"] == (
        [
            "part[0].a",
            "part[0].b[0]",
            "part[0].b[1]",
            "part[1].a",
            "part[1].b[0]",
            "part[1].b[1]",
            "one.a",
            "one.b[0]",
            "one.b[1]",
            "ok",
        ]
    )
    methods = [[0, 1, "previous"], [3, 4, "previous"], [6, 7, "previous"], [9, 10, "previous"]]
    assert yields.facts["outer.2"]["attributes"] == {"clock_source": "timestamp", "schema": "outer", "methods": methods}
    assert yields.clocks == {"outer.2": "recorded"}


def test_no_integer_is_rounded(tmp_path):
    log = write_log(
        tmp_path,
        format_message("narrow:uint64_t timestamp;int16_t a;uint16_t b;float c;"),
        format_message("wide:uint64_t timestamp;int32_t a;uint32_t b;float c;double d;int64_t e;uint64_t[2] f;"),
        announce(0, "narrow"),
        announce(1, "wide"),
        data(0, 1, "hHf", -(2**15), 2**16 - 1, 0.1),
        data(1, 1, "iIfdqQQ", -(2**31), 2**32 - 1, 0.1, 0.1, -(2**63), 2**64 - 1, 2**53 + 1),
    )
    streams = Yields("ulog", log).only()
    assert {name: values.dtype.name for name, (_, values) in streams.items()} == {
        "narrow": "float32",
        "wide": "float64",
        "wide/int64": "int64",
        "wide/uint64": "uint64",
    }
    assert streams["narrow"][1].tolist() == [[-(2**15), 2**16 - 1, np.float32(0.1)]]
    assert streams["wide"][1].tolist() == [[-(2**31), 2**32 - 1, np.float32(0.1), 0.1]]
    assert streams["wide/int64"][1].tolist() == [[-(2**63)]]
    assert streams["wide/uint64"][1].tolist() == [[2**64 - 1, 2**53 + 1]]


def test_arrays_of_char_are_text(tmp_path):
    log = write_log(
        tmp_path,
        format_message("named:uint64_t timestamp;char[6] call;char one;"),
        announce(0, "named"),
        data(0, 1, "6sc", b"AB\0zz\0", b"x"),
        data(0, 2, "6sc", b"caf\xc3\xa9s", b"y"),
        data(0, 3, "6sc", b"\xff", b"z"),
    )
    streams = Yields("ulog", log).only()
    assert streams["named/call"][1] == ["AB", "cafés", "\\xff"]
    assert streams["named"][1].tolist() == [[ord("x")], [ord("y")], [ord("z")]]


def test_distances_with_limits_are_held(tmp_path):
    log = write_log(
        tmp_path,
        format_message(
            "distance_sensor:uint64_t timestamp;float min_distance;float max_distance;float current_distance;"
        ),
        announce(0, "distance_sensor"),
        *(data(0, 2000 + 1000 * k, "fff", 0.2, 10, 20.0 * (k % 2)) for k in range(3)),
    )
    report = robocache.ingest(log, tmp_path / "cache")
    assert robocache.open(tmp_path / "cache")["distance_sensor"].attributes["methods"] == [[2, 3, "previous"]]
    assert "distance_sensor: current_distance between rows" in {note.what for note in report.left_out}


def test_a_topic_announced_again_continues(tmp_path):
    """If both announcements have one id, pyulog keeps only the second one's rows."""
    log = write_log(
        tmp_path,
        XY,
        data(0, 1, "ff", 1, 2),
        announce(0, "xy"),
        data(0, 2, "ff", 3, 4),
        announce(7, "xy"),
        data(7, 3, "ff", 5, 6),
    )
    assert Yields("ulog", log).only()["xy"][1].tolist() == [[1, 2], [3, 4], [5, 6]]
    other = write_log(
        tmp_path,
        XY,
        format_message("xy:uint64_t timestamp;float x;float z;"),
        data(0, 1, "ff", 1, 2),
        announce(1, "xy"),
        data(1, 2, "ff", 3, 4),
    )
    assert "announced again, with other fields" in outcome("ulog", other)


def test_parts_may_end_anywhere(tmp_path, monkeypatch):
    rows = [data(0, k, "ff", k, -k) + SYNC for k in range(50)]
    log = write_log(tmp_path, XY, *rows, message("L", b"6" + struct.pack("<Q", 9) + b"hello"))
    streams = Yields("ulog", log).only()
    for size in (1, 7, 64):
        monkeypatch.setattr(ulog, "_BYTES_PER_PART", size)
        parts = Yields("ulog", log).only()
        assert parts.keys() == streams.keys()
        for name, (time_ns, values) in streams.items():
            assert np.array_equal(parts[name][0], time_ns) and np.array_equal(parts[name][1], values)


def test_messages_are_found_again_wherever_parts_end(tmp_path, monkeypatch):
    log = write_log(tmp_path, XY, data(0, 1, "ff", 1, 2), bytes(30), SYNC, data(0, 2, "ff", 3, 4))
    for size in range(1, 40):
        monkeypatch.setattr(ulog, "_BYTES_PER_PART", size)
        yields = Yields("ulog", log, on_error="skip")
        assert yields.only()["xy"][1].tolist() == [[1, 2], [3, 4]]
        assert list(yields.skipped) == ["log.ulg: 1 message"]


def test_messages_are_text_with_their_level_and_tag(tmp_path):
    log = write_log(
        tmp_path,
        XY,
        message("L", b"3" + struct.pack("<Q", 5) + "über".encode()),
        message("C", b"6" + struct.pack("<HQ", 9, 6) + b"\xff!"),
    )
    streams = Yields("ulog", log).only()
    assert streams["logged_messages"][0].tolist() == [5000, 6000]
    assert streams["logged_messages"][1] == ["über", "\\xff!"]
    assert streams["logged_messages/level"][1].tolist() == [[3, -1], [6, 9]]


def test_a_logs_information_is_in_the_provenance(tmp_path):
    log = write_log(
        tmp_path,
        information("I", "char[3]", "sys_name", b"PX4"),
        information("I", "uint32_t", "ver", struct.pack("<I", 7)),
        information("I", "uint8_t[2]", "blob", b"\0\1"),
        information("M", "char[2]", "boot", b"ab", b"\0"),
        information("M", "char[2]", "boot", b"cd", b"\1"),
        information("M", "char[2]", "boot", b"ef", b"\0"),
        information("P", "float", "GAIN", struct.pack("<f", 0.5)),
        information("P", "float", "NONE", struct.pack("<f", np.nan)),
        information("Q", "int32_t", "MODE", struct.pack("<i", -2), b"\3"),
        XY,
        data(0, 2000, "ff", 1, 2),
        information("P", "float", "GAIN", struct.pack("<f", 1.5)),
        data(0, 3000, "ff", 1, 2),
        message("O", struct.pack("<H", 40)),
    )
    yields = Yields("ulog", log)
    assert yields.source_facts["logs"]["log.ulg"] == {
        "version": 1,
        "start_us": 1000,
        "information": {"sys_name": "PX4", "ver": 7, "boot": ["abcd", "ef"]},
        "parameters": {"GAIN": 0.5, "NONE": "nan"},
        "default_parameters": {"system": {"MODE": -2}, "setup": {"MODE": -2}},
        "changed_parameters": [[2000, "GAIN", 1.5]],
        "dropouts": [[3000, 40]],
        "appended_sections": 0,
        "rows_stamped_0": {},
    }
    assert yields.left_out == {"information blob": "neither text nor number"}


def test_rows_stamped_0_are_kept_counted_and_named(tmp_path):
    log = write_log(tmp_path, XY, data(0, 0, "ff", 1, 2), data(0, 0, "ff", 3, 4), data(0, 1500, "ff", 5, 6))
    yields = Yields("ulog", log)
    assert yields.only()["xy"][0].tolist() == [0, 0, 1_500_000]
    assert yields.source_facts["logs"]["log.ulg"]["rows_stamped_0"] == {"xy": 2}
    (what,) = yields.left_out
    assert what == "log.ulg: xy: the time of 2 rows"
    from_0 = write_log(tmp_path, header(start_us=0), XY, data(0, 0, "ff", 1, 2))
    assert Yields("ulog", from_0).left_out == {}  # there the log began at 0


# ---- damaged and unusual logs ----


def test_a_cut_log_is_refused_or_named(tmp_path):
    log = write_log(tmp_path, XY, data(0, 1, "ff", 1, 2), data(0, 2, "ff", 3, 4))
    size = log.stat().st_size
    log.write_bytes(log.read_bytes()[:-5])
    with pytest.raises(robocache.FileError, match=rf"log.ulg: byte {size - 21}: the file ends in the middle"):
        Yields("ulog", log)
    yields = Yields("ulog", log, on_error="skip")
    assert yields.only()["xy"][1].tolist() == [[1, 2]]
    assert list(yields.skipped) == ["log.ulg: 1 message"]


def test_a_message_cut_by_an_appended_section_is_named(tmp_path):
    rows = [data(0, k, "ff", k, 0) for k in (1, 2, 3)]
    before = len(header()) + len(XY) + len(rows[0]) + 6
    log = write_log(tmp_path, header(appended=[before]), XY, rows[0], rows[1][:6], rows[2])
    yields = Yields("ulog", log)
    assert yields.only()["xy"][1][:, 0].tolist() == [1, 3]
    assert yields.source_facts["logs"]["log.ulg"]["appended_sections"] == 1
    assert list(yields.left_out) == [f"log.ulg: bytes {before - 6} to {before - 1}"]
    for offsets in ([10**9], [before, before], [5]):
        assert "data appended" in outcome("ulog", write_log(tmp_path, header(appended=offsets), XY))


@pytest.mark.parametrize(
    ("damage", "message_part"),
    [
        (bytes(40), "byte 129: no message before byte 180"),
        (data(9, 1, "ff", 1, 2), "byte 129: data of message 9, which nothing announced"),
        (data(0, 1, "f", 1), "expected 16 to 16 bytes, got 12"),
        (message("A", b"\0\5\0none"), "format 'none': not in the file"),
        (message("L", b"x" + bytes(20)), "no message of type 'L'"),
        (message("F", b"f:float"), "expected a field as"),
        (message("F", b"f:float[0] x"), "expected a field as"),
        (message("P", b""), "no message of type 'P'"),
    ],
)
def test_damage_is_refused_or_skipped_by_name(damage, message_part, tmp_path):
    log = write_log(tmp_path, XY, data(0, 1, "ff", 1, 2), damage, SYNC, data(0, 2, "ff", 3, 4))
    assert message_part in outcome("ulog", log)
    yields = Yields("ulog", log, on_error="skip")
    assert yields.only()["xy"][1].tolist() == [[1, 2], [3, 4]]
    ((what, reason),) = yields.skipped.items()
    assert what == "log.ulg: 1 message" and message_part in reason


def test_messages_of_a_later_version_are_left_out_by_name(tmp_path):
    log = write_log(tmp_path, XY, message("Z", b"??"), message("Z", b"??"), data(0, 1, "ff", 1, 2))
    assert Yields("ulog", log).left_out == {"log.ulg: messages of type 'Z'": "not of ULog version 1: 2"}
    assert "an unknown kind of ULog" in outcome("ulog", write_log(tmp_path, header()[:27] + b"\2" + header()[28:], XY))


def test_formats_of_huge_messages_are_refused_at_once(tmp_path):
    deep = [format_message(f"f{k}:uint64_t timestamp;f{k + 1}[65535] x;") for k in range(20)]
    hollow = [format_message(f"h{k}:h{k + 1}[65535] x;") for k in range(20)]
    started = time.process_time()
    for formats, name, message_part in (
        ([*deep, format_message("f20:uint64_t timestamp;")], "f0", "expected at most 65535 bytes a row"),
        ([*hollow, format_message("h20:")], "h0", "no fields"),
        ([format_message("loop:uint64_t timestamp;loop x;")], "loop", "or itself"),
        (
            [format_message(f"g{k}:uint64_t timestamp;g{k + 1} x;") for k in range(3000)],
            "g0",
            "within more than 32 others",
        ),
        ([format_message("still:float x;")], "still", "expected a field uint64_t timestamp"),
    ):
        assert message_part in outcome("ulog", write_log(tmp_path, *formats, announce(0, name)))
    assert time.process_time() - started < 2


def test_stamps_beyond_int64_nanoseconds_are_refused(tmp_path):
    assert "does not fit int64" in outcome("ulog", write_log(tmp_path, XY, data(0, 2**63 // 1000 + 1, "ff", 1, 2)))
    last = (2**63 - 1) // 1000
    assert Yields("ulog", write_log(tmp_path, XY, data(0, last, "ff", 1, 2))).only()["xy"][0].tolist() == [last * 1000]


def test_each_log_of_a_folder_is_an_episode(tmp_path):
    for name, value in (("b/one.ulg", 1.0), ("a/one.ULG", 2.0)):
        (tmp_path / name).parent.mkdir()
        write_log(tmp_path, XY, data(0, 1, "ff", value, value), name=name)
    (tmp_path / "a/notes.txt").write_text("x")
    yields = Yields("ulog", tmp_path)
    assert [streams["xy"][1][0, 0] for streams in yields.episodes.values()] == [2.0, 1.0]
    assert [metadata["name"] for metadata in yields.metadata.values()] == ["a/one.ULG", "b/one.ulg"]
    assert yields.left_out == {"*.txt": "no ULog: 1 file"}


def test_workers_give_the_same_notes(tmp_path):
    (tmp_path / "logs").mkdir()
    for number in range(3):
        write_log(tmp_path / "logs", XY, data(0, 0, "ff", 1, 2), data(0, 2000, "ff", number, 3), name=f"{number}.ulg")
    reports = [robocache.ingest(tmp_path / "logs", tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    caches = [robocache.open(report.cache) for report in reports]
    assert reports[0].rows == reports[1].rows == {"xy": 6}
    assert reports[0].left_out == reports[1].left_out and len(reports[0].left_out) == 3
    assert caches[0].provenance == caches[1].provenance
    assert caches[0].provenance["ulog"]["logs"].keys() == {"0.ulg", "1.ulg", "2.ulg"}
    assert np.array_equal(caches[1].streams["xy"].values[1::2, 0], [0, 1, 2])


def test_logs_are_recognised_by_name_and_content(tmp_path):
    log = write_log(tmp_path, XY, name="log.bin")
    assert registry.find_format(log).name == "ulog"
    assert registry.find_format(write_log(tmp_path, XY).parent).name == "ulog"


# ---- real logs ----


@pytest.mark.parametrize("name", LOGS)
def test_real_logs_equal_pyulog(name, real_data):
    file = real_data("ulog/pyulog") / f"{name}.ulg"
    log, yields = pyulog.ULog(str(file)), Yields("ulog", file)
    streams, log_facts = yields.only(), yields.source_facts["logs"][file.name]
    unread = set(streams)
    zeros = {}
    for topic in log.data_list:
        stream = f"{topic.name}.{topic.multi_id}" if topic.multi_id else topic.name
        stamps = topic.data["timestamp"]
        if np.any(stamps == 0):
            zeros[stream] = int(np.sum(stamps == 0))
        columns, texts = {}, {}
        for part in (stream, f"{stream}/int64", f"{stream}/uint64"):
            if part in streams:
                unread.discard(part)
                time_ns, values = streams[part]
                assert np.array_equal(time_ns, stamps.astype(object) * 1000)
                columns |= {column: values[:, i] for i, column in enumerate(yields.facts[part]["names"])}
        for part in [part for part in unread if part.startswith(f"{stream}/")]:
            unread.discard(part)
            texts[part.removeprefix(f"{stream}/")] = streams[part][1]
        for column, values in topic.data.items():
            if column == "timestamp" or "_padding" in column:
                continue
            if column not in columns:
                text, _, number = column.rpartition("[")
                number = int(number[:-1])
                for row, value in zip(texts[text], values, strict=True):
                    assert len(row) <= number or ord(row[number]) == value
                continue
            assert np.array_equal(columns.pop(column), values, equal_nan=True), column
        assert not columns
    assert unread == {"logged_messages", "logged_messages/level"}
    tagged = [message for messages in log.logged_messages_tagged.values() for message in messages]
    messages = [(m.timestamp * 1000, m.message) for m in (*log.logged_messages, *tagged)]
    assert sorted(zip(streams["logged_messages"][0].tolist(), streams["logged_messages"][1], strict=True)) == sorted(
        messages
    )
    assert log_facts["parameters"].keys() == log.initial_parameters.keys()
    for key, value in log.initial_parameters.items():
        assert log_facts["parameters"][key] in (value, str(value))
    assert log_facts["changed_parameters"] == [list(change) for change in log.changed_parameters]
    assert log_facts["dropouts"] == [[dropout.timestamp, dropout.duration] for dropout in log.dropouts]
    assert log_facts["rows_stamped_0"] == zeros
    assert log_facts["appended_sections"] == len(log._appended_offsets)
    for key, value in log.msg_info_dict.items():
        assert log_facts["information"][key] == value
    assert yields.skipped == {}


def test_mutated_logs_are_read_or_named(real_data, rng, tmp_path):
    sources = [(real_data("ulog/pyulog") / f"{name}.ulg").read_bytes() for name in LOGS[:2]]
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "mutated.ulg"
    for number in range(rounds(30)):
        path.write_bytes(damage(sources[rng.integers(len(sources))], rng))
        started = time.process_time()
        outcome("ulog", path, on_error=("stop", "skip")[number % 2])
        assert time.process_time() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before < 300 << 10  # KiB
    for content in (b"", b"ULog", b"ULog\x01\x12\x35", b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(content)
        assert outcome("ulog", path)

"""Episodes without a stream are padded with a warning, dropped, or refused; windows of mostly padding are warned of."""

import pickle

import numpy as np
import pyarrow.compute as pc
import pytest
from recordings import anchors_of, no_warning, small_loader, write

import robocache
from robocache import LoaderWarning, Source

WINDOWS = {"state": None, "camera": [0.0]}


def rows(count, hz=10, first_value=0.0):
    return np.arange(count) * (10**9 // hz), np.arange(first_value, first_value + count, dtype=np.float32)[:, None]


def episodes_with(*names_of_episodes):
    """Returns an episode for each text of stream names, with 20 rows of every stream."""
    return [{name: rows(20, first_value=1) for name in names.split()} for names in names_of_episodes]


@pytest.fixture
def incomplete(tmp_path):
    """Five episodes: two have the camera, four the state."""
    return write(tmp_path / "incomplete", episodes_with("state camera", "state", "state camera", "state", "camera"))


def loader_of(dataset, **options):
    return small_loader(dataset, **{"delta_timestamps": WINDOWS} | options)


def loader_without_warning(dataset, **options):
    """Returns a loader, which must not warn."""
    with no_warning():
        return loader_of(dataset, **options)


def episodes_of(loader):
    return {episode for episode, _ in anchors_of(loader)}


def test_rule_48_episodes_without_a_key_are_padded_and_counted_in_one_warning(incomplete, device):
    with pytest.warns(LoaderWarning) as warned:
        loader = loader_of(incomplete, batch_size=80, anchor="state", device=device)
    assert len(warned) == 1
    text = str(warned[0].message)
    assert "missing: 2 of 5 episodes have no row of 'camera'" in text
    assert "anchors: 1 of 5 episodes have no row of 'state'" in text
    assert "missing='drop'" in text and "pc.field('rows.camera') > 0" in text
    batch = next(loader)
    is_absent = np.isin(np.asarray(batch["episode_index"].cpu()), [1, 3])
    assert is_absent.sum() == 40
    assert (np.asarray(batch["camera_is_pad"].cpu())[:, 0] == is_absent).all()
    assert (np.asarray(batch["camera"].cpu())[is_absent] == 0).all()


def test_rule_48_drop_leaves_episodes_out(incomplete, device):
    loader = loader_without_warning(incomplete, missing="drop", device=device)
    assert episodes_of(loader) == {0, 2}
    assert loader.num_anchors == 40
    selected = loader_without_warning(incomplete, missing="drop", episodes=[3, 2, 1], device=device)
    assert episodes_of(selected) == {2}


def test_rule_48_error_names_what_is_missing(incomplete):
    message = r"^missing: 1 of 5 episodes have no row of 'state', 2 none of 'camera'; the first is episode 4"
    with pytest.raises(robocache.ArgumentError, match=message):
        loader_of(incomplete, anchor="state", missing="error")
    loader_without_warning(incomplete, missing="error", episodes=[0, 2])
    with pytest.raises(robocache.ArgumentError, match=r"missing: expected 'pad', 'drop' or 'error', got 'skip'"):
        loader_of(incomplete, missing="skip")


def test_rule_48_dropping_all_episodes_is_refused(incomplete):
    with pytest.raises(robocache.ArgumentError, match=r"^missing: 2 of 2 episodes have no row of 'camera'; expected"):
        loader_of(incomplete, missing="drop", episodes=[1, 3])


def test_rule_48_where_selects_episodes_with_rows(incomplete):
    condition = (pc.field("rows.camera") > 0) & (pc.field("rows.state") > 0)
    assert incomplete.select(condition) == [0, 2]
    selected = loader_without_warning(incomplete, episodes=condition, shuffle=False)
    dropped = loader_without_warning(incomplete, missing="drop", shuffle=False)
    assert anchors_of(selected) == anchors_of(dropped)


def test_rule_37_a_source_without_the_key_is_drawn_with_a_warning(incomplete, tmp_path):
    """Its episodes are padded. Episodes of the other source without the key are counted in the same warning."""
    without_camera = write(tmp_path / "without_camera", episodes_with("state", "state"))
    sources = [Source(without_camera), Source(incomplete, episodes=[0, 1, 2])]
    with pytest.warns(LoaderWarning) as warned:
        loader_of(sources, anchor="state")
    (text,) = (str(warning.message) for warning in warned)
    message = "sources[0].missing: no stream for 'camera': in all of its 2 episodes the values are 0 and is_pad is true"
    assert text.startswith(message) and "rename=" in text
    assert "sources[1].missing: 1 of 3 episodes have no row of 'camera'" in text
    with pytest.warns(LoaderWarning, match=r"sources\[0\].missing: no stream for 'camera'") as warned:
        loader = loader_of(sources, anchor="state", missing="drop")
    assert loader.num_anchors == 80 and len(warned) == 1 and "sources[1]" not in str(warned[0].message)
    with pytest.raises(robocache.ArgumentError, match=r"^sources\[1\].missing: 1 of 3 episodes"):
        loader_of(sources, anchor="state", missing="error")


def test_rule_48_warnings_have_a_renamed_streams_key(incomplete):
    windows = {"state": None, "top": None}
    with pytest.warns(LoaderWarning, match=r"no row of 'top'.*field\('rows.camera'\)"):
        loader_of([robocache.Source(incomplete, rename={"camera": "top"})], delta_timestamps=windows, anchor="state")


def test_rule_48_anchors_of_a_clock(incomplete, tmp_path, device):
    """Episodes with one of the streams are drawn; episodes with neither are left out without a warning."""
    with pytest.warns(LoaderWarning, match=r"1 of 5 episodes have no row of 'state', 2 none of 'camera'"):
        loader_of(incomplete, anchor_hz=10, device=device)
    loader = loader_without_warning(incomplete, anchor_hz=10, missing="drop", device=device)
    assert episodes_of(loader) == {0, 2}
    aborted = write(tmp_path / "aborted", [*episodes_with("state camera", "state camera"), {}])
    loader_without_warning(aborted, anchor_hz=10)


def test_rule_48_no_warning_if_edges_drop_the_episodes(incomplete):
    loader = loader_without_warning(incomplete, edges="drop", anchor="state")
    assert episodes_of(loader) == {0, 2}


def test_rule_48_ranks_drop_the_same_and_one_warns(incomplete):
    options = {"batch_size": 4, "anchor": "state", "world_size": 2}
    with pytest.warns(LoaderWarning):
        loader_of(incomplete, rank=0, **options)
    loader_without_warning(incomplete, rank=1, **options)
    options |= {"missing": "drop", "shard_episodes": True}
    assert [episodes_of(loader_without_warning(incomplete, rank=rank, **options)) for rank in range(2)] == [{0}, {2}]


def test_rule_48_one_warning_for_all_sources_and_none_for_copies(incomplete, tmp_path):
    sources = [Source(incomplete), Source(incomplete, episodes=[0, 1])]
    with pytest.warns(LoaderWarning) as warned:
        loader = loader_of(sources, anchor="state")
    assert len(warned) == 1
    text = str(warned[0].message)
    assert "sources[0].missing: 2 of 5" in text and "sources[1].missing: 1 of 2" in text
    with no_warning():
        pickle.loads(pickle.dumps(loader))


# ---- windows that are mostly padding ----


def dataset_at_10_hz(tmp_path, episodes=3, count=100):
    return write(tmp_path / "ten", [{"action": rows(count), "state": rows(count)} for _ in range(episodes)])


@pytest.mark.parametrize("length", [16, 200])
def test_rule_48_offsets_in_rows_instead_of_seconds_are_warned_of(tmp_path, device, length):
    dataset = dataset_at_10_hz(tmp_path)
    windows = {"state": None, "action": list(range(length))}
    with pytest.warns(LoaderWarning) as warned:
        loader = loader_of(dataset, batch_size=300, delta_timestamps=windows, device=device)
    text = str(warned[0].message)
    share = float(np.asarray(next(loader)["action_is_pad"].cpu()).mean())
    assert len(warned) == 1 and share > 0.5
    assert text.startswith(f"delta_timestamps['action']: {100 * share:.3g}% of the steps are padding")
    parts = (
        f"0 s to {length - 1} s",
        "9.9 s (median)",
        "a row 0.1 s",
        "offsets are seconds",
        "edges='drop'",
        "300 anchors",
    )
    assert all(part in text for part in parts)
    assert "'state'" not in text


def test_rule_48_mostly_complete_windows_are_not_warned_of(tmp_path):
    dataset = dataset_at_10_hz(tmp_path)
    loader_without_warning(dataset, delta_timestamps={"action": [k / 10 for k in range(50)]})
    loader_without_warning(dataset, delta_timestamps={"action": list(range(9))}, edges="drop")


def test_rule_48_the_warning_names_the_kind_of_padding(tmp_path):
    dataset = dataset_at_10_hz(tmp_path)
    options = {"delta_timestamps": {"action": [0.03, 0.04]}}
    with pytest.warns(LoaderWarning, match=r"'action'\]: 100% of the steps are padding.*tolerance_s"):
        loader_of(dataset, method="nearest", tolerance_s=0.01, **options)
    with pytest.warns(LoaderWarning, match=r"max_gap_s"):
        loader_of(dataset, max_gap_s=0.05, **options)


def test_rule_48_padding_counts_only_episodes_with_the_key(incomplete):
    """Episodes without the key have another warning."""
    with pytest.warns(LoaderWarning) as warned:
        loader_of(incomplete, episodes=[0, 1, 3])
    assert [str(w.message).partition(":")[0] for w in warned] == ["missing"]


def test_rule_48_padding_of_one_source_is_named(tmp_path, incomplete):
    long_dataset = dataset_at_10_hz(tmp_path)
    sources = [Source(incomplete, episodes=[0, 2]), Source(long_dataset)]
    options = {"anchor": "state"}
    with pytest.warns(LoaderWarning, match=r"^sources\[0\].delta_timestamps\['state'\]: 7\d(.\d)?% of") as warned:
        loader_of(sources, delta_timestamps={"state": [k / 5 for k in range(20)]}, **options)
    assert "sources[1]" not in str(warned[0].message)


def test_rule_48_the_share_is_estimated_from_many_anchors(tmp_path):
    """There are more anchors than the loader checks. Episodes last 4 s, and offsets reach 10 s."""
    dataset = dataset_at_10_hz(tmp_path, episodes=200, count=41)
    windows = {"action": [k / 10 for k in range(101)]}
    with pytest.warns(LoaderWarning) as warned:
        loader = loader_of(dataset, batch_size=200 * 41, delta_timestamps=windows, device="cpu")
    percent = float(str(warned[0].message).split("]: ")[1].split("%")[0])
    assert abs(percent - 100 * float(np.asarray(next(loader)["action_is_pad"]).mean())) < 2

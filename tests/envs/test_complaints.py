"""Public complaints about WebShop, ScienceWorld and TextCraft, and the test of the kind of each.

Numbers are those of the collection that this project works from, in its section C.
"""

import ast
from pathlib import Path

NO = "does not apply: "
COMPLAINTS = {
    # WebShop
    1: "test_splits_share_no_family",
    2: "test_human_options",
    3: "test_published_ranges_of_the_full_set",
    4: "test_missing_file_is_named",
    5: NO + "neither a web server nor an index made by another program",
    6: "test_reset_without_a_task_is_seeded",
    7: "test_success_means_one",
    8: NO + "no checkpoints are published here",
    9: "test_human_goals",
    10: "test_environments_share_the_catalogue",
    11: "test_missing_file_is_named",
    12: "test_many_brackets_take_no_longer",
    13: "test_the_record_holds_the_reward",
    14: "test_many_environments_leak_nothing",
    15: "test_the_record_holds_the_reward",
    16: "test_opening_needs_nothing_heavy",
    17: "test_missing_file_is_named",
    18: NO + "a pull request for another program",
    19: "test_goals_do_not_depend_on_the_seed",
    20: NO + "speed is measured by benchmarks/webshop.py, as a test of it would fail on a busy machine",
    21: "test_a_large_catalogue_is_kept_on_disk",
    22: "test_results_page_shows_ten",
    23: "test_search_works_on_every_page",
    24: NO + "no progress rate is made up; the score is WebShop's own",
    25: NO + "the catalogue is an argument, so that every result names it",
    26: "test_missing_file_is_named",
    27: "test_splits_are_agentgyms",
    47: "test_a_session_is_its_environments_own",
    # ScienceWorld
    28: "test_heat_is_the_same_every_time",
    29: "test_nothing_can_be_played_after_the_end",
    30: "test_a_wrong_focus_is_minus_100_with_the_clipped_score_beside_it",
    31: "test_ten_waits_end_the_episode",
    32: "test_go_works_with_and_without_to",
    33: "test_doors_have_two_names",
    34: "test_a_door_can_be_looked_at",
    35: "test_the_valid_action_list_is_never_called",
    36: "test_closing_the_last_environment_ends_java",
    37: "test_gold_paths_replay_exactly",
    38: "test_a_time_out_is_no_success_whatever_its_score",
    39: "test_intended_test_tasks_are_all_test_tasks_and_released_ones_leak",
    40: "test_return_is_the_score_and_success_is_apart",
    41: "test_returns_below_zero_are_also_given_clipped",
    42: "test_other_processes_say_the_same",
    48: "test_other_processes_say_the_same",
    # TextCraft
    43: "test_a_group_typed_as_an_item_is_explained_and_a_member_of_it_works",
    44: NO + "it asks how a row of a paper was run; here every row is a suite's, which can be run again",
    45: "test_it_can_be_made_without_arguments_and_reset_without_a_seed",
    46: "test_use_before_the_start_is_refused",
    49: "test_forks_share_nothing_that_changes",
    50: "test_text_is_the_same_in_every_process",
}


def test_every_complaint_has_its_test_or_a_reason() -> None:
    assert sorted(COMPLAINTS) == list(range(1, 51))
    known = {
        node.name
        for path in Path(__file__).parents[1].rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    named = {name for name in COMPLAINTS.values() if not name.startswith(NO)}
    assert named <= known, named - known

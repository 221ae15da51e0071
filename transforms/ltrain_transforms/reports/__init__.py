"""Reports on runs, waves, tasks, datasets, policies and rules: facts, tables and charts."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.reports.collector import collector_health
    from ltrain_transforms.reports.comparison import compare, read_scores
    from ltrain_transforms.reports.dataset import count_prompts, dataset_report
    from ltrain_transforms.reports.difference import difference_report
    from ltrain_transforms.reports.look_at import look_at
    from ltrain_transforms.reports.open_rollouts import OpenRollouts, read_open_rollouts
    from ltrain_transforms.reports.overview import (
        MAX_RUNS,
        RunTable,
        dataset_table,
        home_runs,
        policy_table,
        running_tiles,
    )
    from ltrain_transforms.reports.policy import (
        IDENTIFIER,
        current_version,
        policy_names,
        policy_report,
    )
    from ltrain_transforms.reports.references import (
        AnyReference,
        GroupReference,
        Identifier,
        Kind,
        Reference,
        WaveReference,
    )
    from ltrain_transforms.reports.report import (
        Cell,
        Chart,
        Command,
        Fact,
        Facts,
        Graph,
        Grid,
        Histogram,
        Interval,
        Part,
        Points,
        Report,
        Share,
        Spark,
        Tile,
        Tiles,
        format_cell,
        join_names,
    )
    from ltrain_transforms.reports.rules import (
        render_report,
        render_suggestions,
        report_rules,
        rules_comparison,
        suggest_rules,
    )
    from ltrain_transforms.reports.run import run_report
    from ltrain_transforms.reports.run_overlay import Progress, run_overlay
    from ltrain_transforms.reports.run_state import (
        RunState,
        RunStatus,
        latest_changes,
        list_runs,
        run_state,
        run_watermark,
    )
    from ltrain_transforms.reports.task import Sibling, read_siblings, task_report
    from ltrain_transforms.reports.traffic import traffic_report
    from ltrain_transforms.reports.wave import newest_training_wave, wave_report
    from ltrain_transforms.reports.wave_rewards import RecipeResults, apply_recipe, read_results
    from ltrain_transforms.reports.waves import RunWaves, query_waves

open_face(__name__)

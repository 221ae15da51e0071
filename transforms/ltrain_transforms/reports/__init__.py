"""Reports on runs, waves, tasks, datasets, policies and rules: facts, tables and charts."""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_transforms.reports.collector import collector_health
    from ltrain_transforms.reports.comparison import compare, read_scores
    from ltrain_transforms.reports.dataset import count_prompts, dataset_report
    from ltrain_transforms.reports.difference import difference_report
    from ltrain_transforms.reports.overview import RunTable, dataset_table, home_runs, policy_table
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
        Fact,
        Facts,
        Grid,
        Points,
        Report,
        Share,
        Tile,
        Tiles,
        format_cell,
        join_names,
    )
    from ltrain_transforms.reports.rule_suggestions import render_suggestions, suggest_rules
    from ltrain_transforms.reports.rules_comparison import rules_comparison
    from ltrain_transforms.reports.rules_report import render_report, report_rules
    from ltrain_transforms.reports.run import run_report
    from ltrain_transforms.reports.run_state import (
        RunState,
        RunStatus,
        list_runs,
        run_state,
        run_watermark,
    )
    from ltrain_transforms.reports.task import Sibling, read_siblings, task_report
    from ltrain_transforms.reports.traffic import traffic_report
    from ltrain_transforms.reports.wave import wave_report
    from ltrain_transforms.reports.wave_rewards import apply_recipe, read_results
    from ltrain_transforms.reports.waves import query_waves

open_face(__name__)

"""Loading an invalid recipe raises an error with the key, its value and what is allowed."""

import json
from pathlib import Path

import pytest

from ltrain_transforms.errors import BadRecipe
from ltrain_transforms.recipe import Rollout
from ltrain_transforms.recipe.recipe import Recipe

GOOD = """
[[policy]]
name = "sql"

[[reward]]
name = "answer"
evaluation = "reward"
"""

BOUNDED = '[[reward]]\nuse = "tool-failed"\n'
POTENTIAL = '[[reward]]\nuse = "progress"\n'

RULE = """
[[reward]]
name = "tool-failed"
on = "tool"
when = "{when}"
value = "{value}"
"""


def load(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "ltrain.toml"
    path.write_text(text)
    return Recipe.load(path)


def test_a_good_one_loads_and_its_digest_ignores_spelling(tmp_path: Path) -> None:
    loaded = load(tmp_path, GOOD)
    assert loaded.digest == load(tmp_path, GOOD.replace('"sql"', "'sql'") + "\n# why\n").digest
    assert loaded.digest != load(tmp_path, GOOD.replace("sql", "other")).digest


def test_the_server_of_the_tinker_api_is_in_the_digest_where_it_is_named(tmp_path: Path) -> None:
    digest = load(tmp_path, GOOD).digest
    assert load(tmp_path, GOOD + "\n[train.tinker]\n").digest == digest
    named = GOOD + '\n[train.tinker]\nbase_model = "Qwen/Qwen3-8B"\n'
    assert load(tmp_path, named).digest != digest
    with pytest.raises(BadRecipe, match="api_key"):
        load(tmp_path, GOOD + '\n[train.tinker]\napi_key = "tml-x"\n')


def test_budgets_are_not_in_the_digest(tmp_path: Path) -> None:
    digest = load(tmp_path, GOOD).digest
    budgets = "updates = 99\nspan_timeout = 1\nhang_timeout = 2\nvalidate_every = 3"
    more = GOOD + "\n[train]\n" + budgets + "\nkeep_versions = 9\n"
    more += "drift_outlier = 1.0\ndrift_warning = 0.1\ndrift_limit = 0.5\nray_address = 'auto'\n"
    assert load(tmp_path, more).digest == digest
    assert load(tmp_path, GOOD + "\n[train]\nsteps_per_wave = 2\n").digest != digest


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[filtre]\n", r"filtre: Unknown key 'filtre'.*Did you mean 'filter'"),
        ("[filter]\nmax_token = 3\n", r"filter.max_token: Unknown key.*'max_tokens'"),
        ("[credit.outcome]\nestimator = 'gpro'\n", r"Unknown estimator 'gpro'.*'grpo'"),
        (
            "[train]\nloss_weighting = 'tokens'\n",
            r"train.loss_weighting: .*'tokens'.*call, rollout.*mean 'token'",
        ),
        (
            "[train]\nray_address = 'ray://head:10001'\n",
            r"train.ray_address: 'ray://head:10001' is not the address .*`ray start --head` prints",
        ),
        ("[train]\nray_address = 'head'\n", r"train.ray_address: 'head' is not the address"),
        ("[credit.process]\nreturns = 'reward-to-go'\n", "Did you mean 'reward_to_go'"),
        ("[credit.outcome]\npeers = 'agnet'\n", "'agnet'.*Did you mean 'agent'"),
        (
            "[filter]\nfailed = 'dropp'\n",
            r"toml: filter.failed: Unknown value 'dropp'.*mean 'drop'\?$",
        ),
        ("[filter.failed]\nrewrad = 0\n", "filter.failed.rewrad: Unknown key.*'reward'"),
        ("[filter]\nallow = 'incomplete'\n", "filter.allow: It must be a list"),
        ('[[policy]]\nnmae = "b"\n', r"2 faults:\n  policy.1.nmae: Unknown key 'nmae'.*'name'"),
        ('[[policy]]\nname = "b"\nmodes = ["trian"]\n', r"policy.1.modes.0: .*mean 'train'\?$"),
        ('[[policy]]\nname = "b"\nsampling = { top = 1 }\n', "sampling setting 'top'.*'top_p'"),
        (
            '[[policy]]\nname = "b"\nsampling = { top_p = 0.9 }\n',
            r"top_p = 0.9.*'filtered'.*Remove",
        ),
        ('[[policy]]\nname = "b"\nsampling = { min_tokens = 3 }\n', r"min_tokens = 3.*Remove"),
        ('[[policy]]\nname = "b"\nsampling = { top_k = 5, seed = 1 }\n', r"top_k = 5.*Remove"),
        ("[source]\nsince = 'yesterday'\n", "source.since: 'yesterday' is not an ISO 8601 time"),
        ("[credit.process]\nweight = nan\n", "credit.process.weight: .*finite.*Given: nan"),
        ("[filter]\nfailed = { reward = inf }\n", "filter.failed.reward: .*finite"),
        ('[[reward]]\nname = ""\nevaluation = "x"\n', "reward.1.name: .*at least 1 character"),
        ('[[reward]]\nname = "answer"\nevaluation = "x"\n', "Two rewards are named 'answer'"),
        ('[[reward]]\nname = "empty"\n', "'empty' must have `evaluation`, or `on` and `value`"),
        (
            '[[reward]]\nname = "b"\nevaluation = "x"\non = "tool"\n',
            "'b' has `evaluation` and keys",
        ),
    ],
)
def test_a_fault_is_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + more)


JUDGE = '[[reward]]\nuse = "judge"\n'
ROUTE = '[[serve.route]]\nmodel = "judge"\nurl = "http://judge/v1"\nkey = "KEY"\n'
ONLINE = '[rollout]\ntasks = "t.jsonl"\nagent = "a:b"\n'


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (ONLINE, r"\[rollout\] has no `reward`. Name a function, .* with use = \"judge\""),
        (
            ONLINE + "reward = 'a:score'\n"
            '[[reward]]\nname = "b"\nevaluation = "reward"\nfrom = "any"\n',
            "'b' takes 'reward' from anyone, and the runner writes it. Set from = \"runner\"",
        ),
        (
            ONLINE + JUDGE,
            r"The judge 'judge' has the model 'judge', which has no server. Add \[\[serve",
        ),
        (
            JUDGE + "params = { rubrik = 'x' }\n",
            "'judge', params of the judge: rubrik: Unknown key",
        ),
        (JUDGE + "params = { rubric = 3 }\n", "params of the judge: rubric: .*valid string"),
        (JUDGE + "params = { url = 'judge:80' }\n", "params of the judge: url: .*pattern"),
        (JUDGE + "on = 'llm'\n", "'judge' has `evaluation` and keys of a rule"),
    ],
)
def test_a_fault_of_a_judge_is_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + more)


def test_a_judge_has_the_server_of_its_route(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD + ONLINE + ROUTE + 'served_as = "big"\n' + JUDGE)
    judge = recipe.judges["judge"]
    assert (judge.url, judge.key, judge.model) == ("http://judge/v1", "KEY", "big")
    assert recipe.reward[1].evaluation == "judge"
    assert recipe.secrets == ("KEY",)


def test_a_judge_may_have_a_server_of_its_own_and_another_name(tmp_path: Path) -> None:
    params = "params = { url = 'https://x/v1', key = 'OWN', model = 'm', rubric = 'r' }\n"
    recipe = load(tmp_path, GOOD + ONLINE + ROUTE + JUDGE + "name = 'quality'\n" + params)
    judge = recipe.judges["quality"]
    assert (judge.url, judge.key, judge.model, judge.rubric) == ("https://x/v1", "OWN", "m", "r")
    assert recipe.secrets == ("KEY", "OWN")


SERVICE = '[[service]]\nname = "db"\ncommand = "serve"\n'
ROLLOUT = '[rollout]\ntasks = "t.jsonl"\nreward = "r:s"\n'


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (SERVICE * 2, r"service: Two services are named 'db'. Set count = 2 for two instances"),
        (SERVICE + "fresh = true\nper = 'run'\n", "service.0: fresh = true .* with per = 'run'"),
        (SERVICE + "address = 'http://db:80'\n", r"'http://db:80' has no \{port\}: each instance"),
        (SERVICE + "prot = 1\n", "service.0.prot: Unknown key"),
        (SERVICE + "count = 0\n", "service.0.count: .*greater than or equal to 1"),
        (SERVICE.replace("db", "my-db"), "service.0.name: .*pattern"),
        ('[[service]]\nname = "db"\n', "service.0.command: The key is required. Add a line `comm"),
        (ROLLOUT + "remote = true\n" + SERVICE, r"'db' runs on this machine, and with .*remote"),
    ],
)
def test_a_fault_of_a_service_is_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + more)


def test_a_missing_section_is_named_with_lines_that_mend_it(tmp_path: Path) -> None:
    policy, reward = (f"[[{part}" for part in GOOD.strip().split("[[")[1:])
    for text in (reward, "policy = []\n" + reward):
        with pytest.raises(
            BadRecipe, match=r"policy: The recipe has no \[\[policy\]\], which"
        ) as error:
            load(tmp_path, text)
        load(tmp_path, text.replace("policy = []", "") + str(error.value).partition("Add:")[2])
    with pytest.raises(
        BadRecipe, match=r"reward: The recipe has no \[\[reward\]\], which"
    ) as error:
        load(tmp_path, policy)
    load(tmp_path, policy + str(error.value).partition("Add:")[2])
    with pytest.raises(BadRecipe, match=r"2 faults:\n  policy: The .*\n .*\n .*\n  reward: The"):
        load(tmp_path, "")


def test_a_service_has_defaults(tmp_path: Path) -> None:
    (service,) = load(tmp_path, GOOD + SERVICE).service
    assert (service.count, service.health, service.per, service.fresh) == (
        1,
        "tcp",
        "attempt",
        False,
    )
    assert service.address == "http://127.0.0.1:{port}"


def test_all_faults_are_listed_with_unknown_keys_first(tmp_path: Path) -> None:
    more = """
[rollout]
tasks = "t.jsonl"
agent = "a:b"
reward = "r:s"
timeout = 0
[train]
losss = "vanilla"
lora_rank = -1
"""
    with pytest.raises(BadRecipe) as caught:
        load(tmp_path, more + "[[policy]]\nname = 'a'\n[[reward]]\nname = 'empty'\n")
    first, *rest = str(caught.value).splitlines()
    assert first.endswith("ltrain.toml: 4 faults:")
    assert [line.strip().partition(": ")[0] for line in rest] == [
        "train.losss",
        "rollout.timeout",
        "reward.0",
        "train.lora_rank",
    ]


@pytest.mark.parametrize(
    ("when", "value", "says"),
    [
        ("statuss = 'error'", "-0.2", "statuss.*Columns: .*status"),
        ("status = ", "-0.2", "when = "),
        ("name", "-0.2", "returns String; it must return true or false"),
        ("true", "'much'", "it must return a number"),
        ("true", "sum(gap)", "aggregates are refused"),
        ("true", "max(seq) + seq", "aggregates are refused"),
        ("true", "lag(seq)", "aggregates are refused"),
        ("count(*) > 3", "1", "aggregates are refused"),
        ("true", "row_number() over (order by seq)", r"windows and subqueries \(over\)"),
        ("gap in (select gap from self)", "1", r"subqueries \(select\)"),
    ],
)
def test_bad_sql_is_named(tmp_path: Path, when: str, value: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + RULE.format(when=when, value=value))


@pytest.mark.parametrize(
    ("when", "value"),
    [
        ("status = 'error' AND repeat > 0", "-0.1 * repeat"),
        ("name = 'select over'", "0.5"),
        ("previous_status IS NULL", "CASE WHEN gap > 1 THEN -gap ELSE 0 END"),
        ("true", "CAST(rows AS DOUBLE) / 10"),
    ],
)
def test_good_sql_loads(tmp_path: Path, when: str, value: str) -> None:
    rule = RULE.format(when=when, value=value) + 'let = { rows = "result:$.rows" }\n'
    assert load(tmp_path, GOOD + rule).reward[1].value == value


@pytest.mark.parametrize(
    ("let", "says"),
    [
        ('rows = "$.rows"', 'write it as "column:\\$.path"'),
        ('rows = "result:$.ro[ws"', r"\$\.ro\[ws' is not a JSON path"),
        ('rows = "gap:$.rows"', "with a column of: .*result"),
        ('status = "result:$.status"', "a column of that name exists already"),
    ],
)
def test_a_bad_name_for_json_is_named(tmp_path: Path, let: str, says: str) -> None:
    rule = RULE.format(when="true", value="1") + f"let = {{ {let} }}\n"
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + rule)


def test_no_recipe_and_no_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="No recipe at"):
        Recipe.load(tmp_path / "missing.toml")
    with pytest.raises(BadRecipe, match="is not TOML"):
        load(tmp_path, "[[policy")


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("statuss = 'error'", r"line 1, column 1: there is no column 'statuss'.*mean 'status'"),
        ("status = 'error' AND\\n  repeet > 0", r"line 2, column 3: .*'repeet'.*mean 'repeat'"),
        ("status = 'error' AN repeat > 0", "found: AN at line 1, column 18"),
        ("status = 'error') OR (repeat > 0", "invalid expression|found"),
        ("start < now()", r"the clock \(now\) is refused"),
        ("status = :bad", "names the parameter ':bad'. It has no `params`"),
        ("fits", "there is no column 'fits'"),
    ],
)
def test_bad_sql_says_where(tmp_path: Path, when: str, says: str) -> None:
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, GOOD + RULE.format(when=when, value="1"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("params = { most = 1 }\nvalue = ':much'", "Unknown parameter 'much'"),
        ("schema = { type = 'text' }", "schema: 'text' is not valid"),
        ("min = 1.0\nmax = 0.5", "min = 1.0 is above max = 0.5"),
        ("min = nan", "min: .*finite"),
        ("potential = true\nmax = 1.0", "a bound would break the sum"),
        ("python = 'mine'", "has `python` and another rule"),
        ("gate = 'rewrd > 0'", r"gate = .*no column 'rewrd'. Did you mean 'reward'"),
    ],
)
def test_a_rule_that_cannot_be_is_named(tmp_path: Path, more: str, says: str) -> None:
    value = "" if "value" in more else "value = '1'\n"
    with pytest.raises(BadRecipe, match=says):
        load(tmp_path, f"{GOOD}[[reward]]\nname = 'r'\non = 'tool'\n{value}{more}\n")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[source]\nidle = 60\n", "source.idle: `idle` is now `idle_timeout`"),
        ("[rollout]\ndeadline = 60\n", "rollout.deadline: `deadline` is now `timeout`"),
        ("[rollout]\nper_task = 8\n", "`per_task` is now `rollouts_per_task`"),
        ('[[policy]]\nname = "b"\ntokens = "capture"\n', "`tokens` is now `token_source`"),
        ("[credit.outcome]\namong = 'agent'\n", "credit.outcome.among: `among` is now `peers`"),
        ("[filter]\nkeep = []\n", "filter.keep: `keep` is now `allow`"),
        ("[filter]\ngroups = 5\n", "filter.groups: `groups` is now `max_groups`"),
        ("[train]\nsettle = 20\n", "train.settle: `settle` is now `span_timeout`"),
        ("[train]\nweigh = 'call'\n", "train.weigh: `weigh` is now `loss_weighting`"),
        (f"{POTENTIAL}starts_at = 1.0\n", "`starts_at` is now `initial_potential`"),
        (f"{POTENTIAL}ends_at = 1.0\n", "`ends_at` is now `final_potential`"),
        (f"{BOUNDED}at_least = 0.0\n", "reward.1.at_least: `at_least` is now `min`"),
        (f"{BOUNDED}at_most = 1.0\n", "reward.1.at_most: `at_most` is now `max`"),
    ],
)
def test_an_old_key_is_refused_with_its_new_name(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        load(tmp_path, GOOD + more)


def test_one_table_where_there_may_be_several_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"policy: It must be tables, \[\[policy\]\] each"):
        load(tmp_path, GOOD.replace("[[policy]]", "[policy]"))


def test_what_it_says_is_json(tmp_path: Path) -> None:
    """Missing bounds are null, not infinite: JSON has no infinity."""
    rule = load(tmp_path, GOOD + RULE.format(when="true", value="1")).model_dump(mode="json")
    json.dumps(rule, allow_nan=False)
    assert Recipe.model_validate(rule).model_dump(mode="json") == rule


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [
        ({"math": -1.0}, "Domain 'math' has the weight -1.0"),
        ({"math": 0.0}, "Every domain has the weight 0"),
    ],
)
def test_weights_of_domains_are_not_negative_and_not_all_0(
    domains: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Rollout(tasks="t.jsonl", agent="a:b", reward="c:d", domains=domains)


@pytest.mark.parametrize("key", ["refill_tasks = 2", "target_score = 0.5"])
def test_a_schedule_by_scores_needs_a_reward_with_an_evaluation(tmp_path: Path, key: str) -> None:
    rollout = f'[rollout]\ntasks = "t.jsonl"\nagent = "a:b"\nreward = "c:d"\n{key}\n'
    rule = '[[policy]]\nname = "sql"\n' + BOUNDED
    with pytest.raises(BadRecipe, match=f"{key.split()[0]} needs the scores of rollouts"):
        load(tmp_path, rule + rollout)
    assert load(tmp_path, GOOD + rollout).rollout is not None
    unset = rollout.replace(key, "refill_tasks = 0")
    assert load(tmp_path, rule + unset).rollout is not None


def test_the_workspace_of_a_task_is_named_by_keys_that_the_agent_sees() -> None:
    keys = {"tasks": "t.jsonl", "agent": "sh run", "reward": "c:d", "sandbox": "bubblewrap"}
    with pytest.raises(
        ValueError, match=r"`workspace` has \{gold\}, and the agent sees the keys id"
    ):
        Rollout.model_validate({**keys, "workspace": "work/{gold}"})
    seen = {**keys, "workspace": "work/{domain}/{repository}", "agent_sees": ["repository"]}
    assert Rollout.model_validate(seen).workspace == "work/{domain}/{repository}"

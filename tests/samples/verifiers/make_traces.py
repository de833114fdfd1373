"""Write traces.jsonl with the classes and the writer of verifiers 0.4.0 (MIT); no model is asked.

pip install verifiers==0.4.0
python make_traces.py            # writes traces.jsonl beside this script
"""

from __future__ import annotations

from pathlib import Path

from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode, EvalRunInfo, GroupInfo
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from verifiers.v1.utils.trace_store import TRACES_FILE, write_episode

HERE = Path(__file__).resolve().parent
SYSTEM = SystemMessage(content="Answer after ####.")
TASKS = [("Ann has 3 pens and buys 4. How many has she?", "7"), ("A box holds 12 eggs. How many do 3 hold?", "36")]


def episode(index: int, replies: list, error: Exception | None = None, branch: bool = False) -> Episode:
    question, answer = TASKS[index]
    data = WireTaskData(idx=index, prompt=question, system_prompt=SYSTEM.content, answer=answer)
    task = TraceTask(type="SumTask", data=data, key=f"sum-{index}")
    trace = Trace(task=task, agent=AgentInfo(config=WireAgentConfig(model="written"), name="solver"))
    nodes = [MessageNode(message=SYSTEM), MessageNode(message=UserMessage(content=question), parent=0)]
    for message in replies:
        sampled = isinstance(message, AssistantMessage)
        nodes.append(MessageNode(message=message, parent=len(nodes) - 1, sampled=sampled))
        if sampled:
            done = "tool_calls" if message.tool_calls else "stop"
            usage = Usage(prompt_tokens=20, completion_tokens=9)
            trace.calls.append(ModelCall(node=len(nodes) - 1, model="written", finish_reason=done, usage=usage))
    if branch:  # what was sampled first was thrown away: a second leaf under the question
        nodes.insert(2, MessageNode(message=AssistantMessage(content="Let me start again."), parent=1, sampled=True))
        for node in nodes[3:]:
            node.parent = node.parent + 1 if node.parent > 1 else 1
        for call in trace.calls:
            call.node += 1
    trace.nodes = nodes
    if error is None:
        text = next(m.content for m in reversed(replies) if isinstance(m, AssistantMessage))
        trace.record_reward("correct", float(text.endswith(f"#### {answer}")), weight=1.0)
        trace.record_reward("short", 0.5, weight=0.0)
        trace.record_metric("words", len(text.split()))
        trace.ok = True
        trace.stop("agent_completed")
    else:
        trace.rewards = {"correct": None, "short": None}
        trace.record_error(error)
    return Episode(
        env=EnvInfo(id="sums"), task=task, group=GroupInfo(id=f"group-{index}"), traces=[trace], ok=trace.ok,
        run=EvalRunInfo(id="run-1"),
    )  # fmt: skip


def main() -> None:
    (HERE / TRACES_FILE).unlink(missing_ok=True)
    tool = [
        AssistantMessage(content=None, tool_calls=[ToolCall(id="c1", name="multiply", arguments='{"a": 12, "b": 3}')]),
        ToolMessage(tool_call_id="c1", content="36"),
        AssistantMessage(content="Three boxes hold 36.\n#### 36"),
    ]
    episodes = [
        episode(0, [AssistantMessage(content="3 + 4 = 7\n#### 7")]),
        episode(0, [AssistantMessage(content="3 * 4 = 12\n#### 12", reasoning_content="Pens times pens?")]),
        episode(1, tool, branch=True),
        episode(1, [], error=ProviderError("the endpoint closed the connection")),
    ]
    for one in episodes:
        write_episode(HERE, one)


main()

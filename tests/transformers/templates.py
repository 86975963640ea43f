"""Chat templates as transformers renders them, for src/data/sample_formats/chat/tests/table.rs.

    SOURCE_DATE_EPOCH=1751500800 python templates.py [FOLDER [SOURCE...]]

writes, beside the conversations in tests/data/samples/chat/table, what Jinja2 makes of every expression of `expressions.txt`
(`expressions.json`), and of every template of the SOURCEs and conversation of `forms.jsonl` (`templates.json`): the length and hash of
the text, without and with a generation prompt, and the spans that are learned, in characters. The templates are those of other people,
so they are not in this repository: they are copied to FOLDER, where the test reads them (GRISTMILL_CHAT_TEMPLATES=FOLDER). Those in
`table/ours` meet every construct of theirs, and are compared by each run of the tests; what a SOURCE has beyond them is printed. A SOURCE is a
folder of `.jinja` files, or one of Python whose text constants hold templates: `trl/chat_templates` of PyPI's trl, PyPI's
`transformers`, and `tests` of transformers' repository. Templates of a SOURCE that is not named keep their rows. Run with transformers
5.23, trl 1.16, jinja2 3.1.6; of transformers' tests `test_tokenization_common.py` and `test_processing_common.py`.

The span of an answer is what a template without `{% generation %}` adds for its message to the generation prompt, where the text before
it and with it are prefixes of the whole; of one that writes the role and has no such prompt, and what else there is to say of a span, there is no judge here.
"""
import ast
import datetime
import json
import os
import pathlib
import sys

from jinja2 import nodes
from transformers.utils import chat_template_utils as utils

NOW = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
TABLE = pathlib.Path(__file__).resolve().parent.parent / "data/samples/chat/table"
NAMES = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>")


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = Clock


def decoded(message):
    """Arguments that are JSON as text become what they say, and switches of learning go."""
    message = {key: value for key, value in message.items() if key != "weight"}
    for call in message.get("tool_calls") or []:
        if isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def rendered(template, messages, tools, asks=False):
    has = "{% generation" in template or "{%- generation" in template
    texts, spans = utils.render_jinja_template(
        [messages], tools=tools, chat_template=template, add_generation_prompt=asks, return_assistant_tokens_mask=has, **NAMES
    )
    return texts[0], spans[0] if has else None


def brief(text):
    """Its characters, and FNV-1a of its UTF-8."""
    hashed = 0xCBF29CE484222325
    for byte in text.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return [len(text), f"{hashed:016x}"]


def said(message):
    content = message.get("content") or ""
    parts = content if isinstance(content, list) else [{"text": content}]
    return next((part["text"] for part in parts if part.get("text")), "").strip()


def spans(template, messages, tools, wanted):
    text, blocks = rendered(template, messages, tools)
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if blocks is not None:
        if all(wanted[index] for index in answers):
            return [list(block) for block in blocks]
        return [list(block) for block, index in zip(blocks, answers) if wanted[index]] if len(blocks) == len(answers) else None
    found = []
    for index in answers:
        before = rendered(template, messages[:index], tools, True)[0]
        after = rendered(template, messages[: index + 1], tools)[0]
        if not (after.startswith(before) and text.startswith(after)):
            return None
        # Without a prompt, what is before the text of the answer may be a name of its role, or not.
        is_told = said(messages[index]) and after[len(before) :].lstrip().startswith(said(messages[index]))
        if "add_generation_prompt" not in template and not is_told:
            return None
        if wanted[index]:
            found.append([len(before), len(after)])
    return found


def row(template, record):
    wanted = [message.get("weight", 1) for message in record["messages"]]
    messages = [decoded(message) for message in record["messages"]]
    tools, cells = record.get("tools"), []
    for asks in (False, True):
        try:
            cells.append(brief(rendered(template, messages, tools, asks)[0]))
        except Exception:  # the template refuses the conversation
            cells.append(None)
    try:
        cells.append(spans(template, messages, tools, wanted))
    except Exception:
        cells.append(None)
    return cells


def expression(line):
    values = json.loads((TABLE / "values.json").read_text(encoding="utf-8"))
    try:
        return utils._compile_jinja_template(line).render(**values)
    except Exception:
        return None


records = [json.loads(line) for line in (TABLE / "forms.jsonl").read_text(encoding="utf-8").split("\n") if line]


def constants(path):
    """The templates among the texts of a file of Python, by the hash of each."""
    try:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "{{" in text and "{%" in text and "message" in text and ">>>" not in text:
            yield f"{path.stem}_{brief(text)[1][:6]}", text


def construct(node):
    """What a node of a template is, as far as an engine may know it or not."""
    kind = type(node).__name__
    match node:
        case nodes.Filter() | nodes.Test():
            arguments = [*map(type, node.args), *(argument.key for argument in node.kwargs)]
            return kind, node.name, str(arguments)
        case nodes.Call(node=nodes.Getattr(attr=method)):
            return "method", method
        case nodes.Call(node=nodes.Name(name="namespace" | "range" | "raise_exception" | "strftime_now" as function)):
            return "function", function
        case nodes.Getattr(node=nodes.Name(name="loop"), attr=attribute):
            return "loop", attribute
        case nodes.Operand():
            return "operand", node.op
        case nodes.Const():
            return "constant", type(node.value).__name__
        case nodes.Slice():
            return kind, node.step is not None
        case nodes.For():
            return kind, type(node.target).__name__, node.test is not None, bool(node.else_)
        case nodes.If():
            return kind, bool(node.elif_), bool(node.else_)
        case nodes.Macro():
            return kind, bool(node.defaults)
    return (kind,)


def constructs(template):
    tree = utils._compile_jinja_template("").environment.parse(template)
    marks = {mark for mark in ("{%-", "-%}", "{{-", "-}}", "{%+", "{#", "-#}") if mark in template}
    return {construct(node) for node in tree.find_all(nodes.Node)} | marks


def templates(source):
    for path in sorted(source.rglob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")
    for path in sorted(source.rglob("*.py")):
        yield from constants(path)


if __name__ == "__main__":
    lines = (TABLE / "expressions.txt").read_text(encoding="utf-8").split("\n")
    table = {line: expression(line) for line in lines if line}
    (TABLE / "expressions.json").write_text(json.dumps(table, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    table = json.loads((TABLE / "templates.json").read_text(encoding="utf-8"))
    met = set()
    for name, template in templates(TABLE / "ours"):
        met |= constructs(template)
        table[f"ours/{name}"] = {"source": brief(template), "rows": [row(template, record) for record in records]}
    if len(sys.argv) > 1:
        folder = pathlib.Path(sys.argv[1])
        folder.mkdir(parents=True, exist_ok=True)
        for source in map(pathlib.Path, sys.argv[2:]):
            for name, template in templates(source):
                (folder / f"{name}.jinja").write_text(template, encoding="utf-8", newline="")
                table[name] = {"source": brief(template), "rows": [row(template, record) for record in records]}
                for one in sorted(map(str, constructs(template) - met)):
                    print(f"{name}: {one} is in no template of ours")
    rows = [f'"{name}": {json.dumps(entry)}' for name, entry in sorted(table.items())]
    (TABLE / "templates.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")

"""What is generated is what is committed; the generators do what the shells and readers need."""

import typer

from scripts import completions, docs, man
from scripts.generated import stale


def test_completions_are_what_the_program_generates() -> None:
    assert not stale(completions.files()), "run 'make docs'"


def test_pages_are_what_the_program_says() -> None:
    assert not stale(docs.files()), "run 'make docs'"


def test_man_pages_are_what_the_program_says() -> None:
    assert not stale(man.files()), "run 'make docs'"


def test_man_pages_are_plain_roff() -> None:
    """A line of text that began with a dot would be taken for a request, and vanish."""
    for path, text in man.files().items():
        assert text.isascii(), path
        assert text.startswith(".TH LLMGW")
        for line in text.splitlines():
            assert line[:1] != "'", line
            assert line[:1] != "." or line[1:3].strip().isalpha(), line
    assert man.escaped(".SH a-b\n'q \\ …") == "\\&.SH a\\-b\n\\&'q \\e \\[u2026]"


def test_the_zsh_file_completes_when_it_is_autoloaded() -> None:
    sourced = "#compdef llmgw\n_llmgw_completion() {\n}\n\ncompdef _llmgw_completion llmgw\n"
    assert completions.for_fpath(sourced).endswith('}\n\n_llmgw_completion "$@"\n')


def test_every_command_has_its_help() -> None:
    app = typer.Typer(rich_markup_mode=None)
    inner = typer.Typer(rich_markup_mode=None, help="Keys.")
    app.add_typer(inner, name="key")

    @app.command()
    def status() -> None:
        """Show the fleet."""

    @inner.command("add")
    def add(name: str) -> None:
        """Add a key."""

    pages = dict(docs.helps(typer.main.get_command(app), "llmgw"))
    assert list(pages) == ["llmgw", "llmgw status", "llmgw key", "llmgw key add"]
    assert "Usage: llmgw key add [OPTIONS] {name}" in pages["llmgw key add"].replace(
        "NAME", "{name}"
    )


def test_keys_come_with_path_kind_default_and_meaning() -> None:
    schema = {
        "$ref": "#/$defs/Catalog",
        "$defs": {
            "Catalog": {
                "type": "object",
                "required": ["models"],
                "properties": {
                    "models": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Model"}},
                    "mode": {"enum": ["a", "b"], "default": "a", "description": "how"},
                },
            },
            "Model": {
                "type": "object",
                "properties": {
                    "args": {"type": "array", "items": {"type": "string"}, "default": []},
                    "again": {"anyOf": [{"$ref": "#/$defs/Model"}, {"type": "null"}]},
                },
            },
        },
    }
    assert docs.key_table(schema).splitlines()[2:] == [
        "| `models` | object | required |  |",
        "| `models.NAME.args` | list of string | `[]` |  |",
        "| `models.NAME.again` | object |  |  |",
        '| `mode` | `a` \\| `b` | `"a"` | how |',
    ]

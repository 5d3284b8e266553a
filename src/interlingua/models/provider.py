"""One request to a model, and the conversation with it, through pydantic-ai: the only file that uses that library.

The library is imported in a thread when the first model is needed: that takes seconds, and everything else works
without it. Keys and addresses of providers are where pydantic-ai expects them: in the provider's own environment
variables.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .. import extras
from ..model.card import Schema
from ..model.content import Message
from ..model.errors import DefinitionError, InterlinguaError, RunError, StepFailed, TooLarge, Unavailable

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelRequestPart
    from pydantic_ai.models import Model as AnyModel

INSTALL = "pip install 'interlingua[llm]'"
ATTEMPTS = 5
FIRST_PAUSE = 0.5  # seconds, doubled from attempt to attempt, where the provider does not say how long to wait
LONGEST_PAUSE = 60.0

# Where the variable is not called like the provider.
_KEYS = {
    "openai-chat": "OPENAI_API_KEY", "openai-responses": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY",
    "azure-responses": "AZURE_OPENAI_API_KEY", "cohere": "CO_API_KEY", "voyageai": "VOYAGE_API_KEY",
    "vercel": "VERCEL_AI_GATEWAY_API_KEY", "gateway": "PYDANTIC_AI_GATEWAY_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
}  # fmt: skip


# The library behind a provider, where its name is that of an extra of pydantic-ai.
_MODULES = {
    "openai": "openai", "anthropic": "anthropic", "google": "google.genai", "groq": "groq", "mistral": "mistralai",
    "cohere": "cohere", "bedrock": "boto3", "huggingface": "huggingface_hub",
}  # fmt: skip


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call."""

    name: str
    description: str
    schema: Schema


class Call(msgspec.Struct, frozen=True):
    """A tool call of the model. `arguments` is None where they are no JSON object: see `raw`."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    raw: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A reply of the model."""

    text: str
    thoughts: list[str]
    calls: list[Call]
    usage: dict[str, int]
    finish: str | None = None  # the reason for its end, where it gives one


class Model:
    """A model by its name, `provider:name`. It is open while it is used."""

    def __init__(self, name: str, *, timeout: float) -> None:
        check_name(name)
        self.name = name
        self.timeout = timeout
        self._made: AnyModel | None = None
        self._making = threading.Lock()

    async def __aenter__(self) -> Self:
        made = await asyncio.to_thread(self._make) if self._made is None else self._made
        await made.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)

    def _make(self) -> AnyModel:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        with self._making:
            if self._made is None:
                try:
                    self._made = infer_model(self.name)
                except UserError as error:  # no such model, or no key: it says which variable to set
                    said = str(error).partition(" To try Pydantic AI without")[0]
                    raise DefinitionError(f"model {self.name}: {said}") from error
                except ImportError as error:
                    raise DefinitionError(f"model {self.name}: {error}") from error
            return self._made

    async def ask(self, conversation: Conversation, tools: list[Tool], news: list[str]) -> Any:
        """Returns one answer of the model, as JSON, to the conversation and `news`. Raises an error of this project.

        Failures that may pass (too many requests, a provider that is down or slow) are retried before.
        """
        from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, UnexpectedModelBehavior

        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._ask_once(conversation, tools, news)
            except ModelAPIError as error:
                if not _may_pass(error) or attempt == ATTEMPTS:
                    raise self._error(error, attempt) from error
                pause = error.retry_after
            except ContentFilterError as error:
                raise ModelFailed(f"the provider of {self.name} withheld the answer: {error.message}") from error
            except UnexpectedModelBehavior as error:
                if attempt == ATTEMPTS:
                    raise Unavailable(f"model {self.name} answers what nobody can read: {error.message}") from error
                pause = None
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** (attempt - 1) if pause is None else pause, LONGEST_PAUSE))

    async def _ask_once(self, conversation: Conversation, tools: list[Tool], news: list[str]) -> Any:
        from pydantic_ai.direct import model_request
        from pydantic_ai.messages import InstructionPart, ModelMessagesTypeAdapter
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.settings import ModelSettings
        from pydantic_ai.tools import ToolDefinition

        assert self._made is not None
        parameters = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=tool.schema, strict=False
                )
                for tool in tools
            ],
            instruction_parts=[InstructionPart(content=text) for text in conversation.instructions],
        )
        settings = ModelSettings(request_timeout=self.timeout)
        if "max_retries" not in self._made.unsupported_settings:
            settings["max_retries"] = 0  # transient failures are retried here, and not once more in each attempt
        response = await model_request(
            self._made,
            conversation.messages(news),
            model_settings=settings,
            model_request_parameters=parameters,
        )
        return _whole(ModelMessagesTypeAdapter.dump_python([response], mode="json")[0])

    def _error(self, error: ModelAPIError, attempts: int) -> InterlinguaError:
        from pydantic_ai import exceptions as theirs

        said = error.message
        if isinstance(error, theirs.ModelAuthenticationError):
            return ModelFailed(
                f"model {self.name}: its provider does not accept the key; set the environment variable "
                f"{key_variable(self.name)} to one that may use this model ({said})"
            )
        if isinstance(error, theirs.ModelContextWindowExceededError):
            return TooLarge(f"model {self.name}: the conversation is longer than it can read ({said})")
        if isinstance(error, theirs.ModelQuotaExceededError):
            return Unavailable(f"model {self.name}: what may be spent on it is used up ({said})", transient=False)
        if _may_pass(error):
            return Unavailable(f"model {self.name} gave no answer in {attempts} attempts: {said}")
        return ModelFailed(f"model {self.name} refused the request: {said}")


def _whole(value: Any) -> Any:
    """Replaces each half of a character in a model's output by a mark: JSON can hold halves, logs cannot."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(name): _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


class ModelFailed(RunError):
    """The model cannot be used like this; a retry will not help."""


_FAILURES: dict[str, type[InterlinguaError]] = {kind.code: kind for kind in (ModelFailed, TooLarge, Unavailable)}


def _may_pass(error: ModelAPIError) -> bool:
    """Tells if the same request may succeed later: there are too many requests, or the provider is down or slow."""
    from pydantic_ai import exceptions as theirs

    if isinstance(error, theirs.ModelQuotaExceededError):
        return False
    passing = (
        theirs.ModelRateLimitError, theirs.ModelUnavailableError, theirs.ModelServerError,
        theirs.ModelConnectionError, theirs.ModelRequestTimeout,
    )  # fmt: skip
    if isinstance(error, passing):
        return True
    return isinstance(error, theirs.ModelHTTPError) and (error.status_code in (408, 425) or error.status_code >= 500)


def check_installed(model: str) -> None:
    extras.look_for("an agent that a model drives", "pydantic-ai", "llm", "pydantic_ai")
    provider = model.partition(":")[0]
    module = _MODULES.get(provider)
    if module is not None and not _is_there(module):
        raise Unavailable(
            f"model {model} needs {module}, which is not installed: pip install 'pydantic-ai-slim[{provider}]'",
            transient=False,
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def check_name(name: str) -> None:
    provider, colon, model = name.partition(":")
    if not (provider and colon and model):
        raise DefinitionError(f"{name!r} names no model; write provider:name, such as openai:gpt-5")


def key_variable(name: str) -> str:
    """Returns the environment variable that holds the key of a model's provider."""
    provider = name.partition(":")[0].partition("/")[0]
    return _KEYS.get(provider, f"{provider.upper().replace('-', '_')}_API_KEY")


def failure(failed: StepFailed) -> InterlinguaError:
    """Returns the error of a recorded request, as it was raised the first time."""
    info = failed.error
    kind = _FAILURES.get(info.code)
    if kind is None:
        return failed
    made = kind(info.message)
    made.transient = info.transient
    return made


class Conversation:
    """The messages to the model and its replies, as pydantic-ai keeps them."""

    def __init__(self, instructions: list[str]) -> None:
        self.instructions = instructions
        self._past: list[ModelMessage] = []
        self._next: list[ModelRequestPart] = []

    def messages(self, news: list[str]) -> list[ModelMessage]:
        """Returns the whole conversation and `news`, which is not part of it yet."""
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        return [*self._past, ModelRequest(parts=[*self._next, *(UserPromptPart(content=text) for text in news)])]

    def remember(self, message: Message) -> None:
        """Adds a message from before the conversation."""
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart

        if message.role == "agent":
            self._past.append(ModelResponse(parts=[TextPart(message.text)]))
        else:
            self._past.append(ModelRequest.user_text_prompt(message.text))

    def tell(self, text: str) -> None:
        from pydantic_ai.messages import UserPromptPart

        self._next.append(UserPromptPart(content=text))

    def give_back(self, call: Call, content: str, *, failed: bool) -> None:
        """Adds the result of a call. Every call of the last reply needs a result before the next request."""
        from pydantic_ai.messages import ToolReturnPart

        outcome = ToolReturnPart(
            tool_name=call.name, content=content, tool_call_id=call.id, outcome="failed" if failed else "success"
        )
        self._next.append(outcome)

    def hear(self, response: Any) -> Reply:
        """Adds a reply of the model, new from `Model.ask` or from the record, and returns it."""
        from pydantic_ai import messages as theirs

        (read,) = theirs.ModelMessagesTypeAdapter.validate_python([response])
        assert isinstance(read, theirs.ModelResponse)
        self._past, self._next = [*self.messages([]), read], []
        thoughts = [part.content for part in read.parts if isinstance(part, theirs.ThinkingPart) and part.content]
        text = "".join(part.content for part in read.parts if isinstance(part, theirs.TextPart))
        calls = [_call(part) for part in read.parts if isinstance(part, theirs.ToolCallPart)]
        usage = {"input_tokens": read.usage.input_tokens, "output_tokens": read.usage.output_tokens}
        return Reply(text, thoughts, calls, usage, read.finish_reason)


def _call(part: Any) -> Call:
    try:
        return Call(part.tool_call_id, part.tool_name, dict(part.args_as_dict(raise_if_invalid=True)))
    except (ValueError, AssertionError):
        return Call(part.tool_call_id, part.tool_name, None, str(part.args))

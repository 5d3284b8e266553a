// An agent on the npm SDK `@agentclientprotocol/sdk`, in versions 1 and 2, as a user of that SDK would write one.
//
//     node editor_agent.mjs              over stdio
//     node editor_agent.mjs serve        over HTTP and WebSocket, by the SDK's own server; prints its address
//
// The first word of a prompt says what it does: see `act`.
import { randomUUID } from "node:crypto";
import http from "node:http";
import { Readable, Writable } from "node:stream";
import * as v1 from "@agentclientprotocol/sdk";
import * as v2 from "@agentclientprotocol/sdk/experimental/v2";
import { agentProtocolRouter } from "@agentclientprotocol/sdk/experimental/v2";
import { AcpServer } from "@agentclientprotocol/sdk/experimental/server";
import { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } from "@agentclientprotocol/sdk/experimental/node";
import { WebSocketServer } from "ws";

const INFO = { name: "npm-agent", version: "1.0.0", title: "An agent on the npm SDK" };
const LOGIN = Boolean(process.env.AGENT_LOGIN); // somebody must log in first

function state() {
  return { options: { model: "small", careful: false }, stops: new Map(), said: new Map(), servers: [], known: !LOGIN };
}

function options(own, key) {
  const choices = ["small", "big"].map((value) => ({ value, name: value }));
  return [
    { [key]: "model", name: "Model", type: "select", currentValue: own.options.model, options: choices },
    { [key]: "careful", name: "Careful", type: "boolean", currentValue: own.options.careful },
  ];
}

function open(own, session, servers) {
  if (!own.known) throw new v1.RequestError(-32000, "Authentication required");
  own.servers = servers ?? [];
  own.said.set(session, own.said.get(session) ?? []);
  return session;
}

// One turn. What differs between the versions is in `speak`.
async function act(own, speak, context, session, prompt) {
  const update = (told) => context.client.notify("session/update", { sessionId: session, update: told });
  const say = (text) => update(speak.chunk("agent_message_chunk", text));
  const stopped = new Promise((resolve) => own.stops.set(session, () => resolve("cancelled")));
  const text = prompt.find((block) => block.type === "text")?.text ?? "";
  const [word, ...rest] = text.split(" ");
  own.said.get(session).push(text);
  switch (word) {
    case "stream":
      for (let number = 0; number < Number(rest[0]); number++) await say(`${number} `);
      return "end_turn";
    case "activity":
      await update(speak.chunk("agent_thought_chunk", "Let me see."));
      await update(speak.plan([{ content: "look", priority: "high", status: "in_progress" }]));
      await update(speak.call(
        { toolCallId: "c1", title: "Edit a file", kind: "edit", status: "in_progress", rawInput: { n: 1 } }));
      await update({
        sessionUpdate: "tool_call_update", toolCallId: "c1", status: "completed", content: [speak.diff],
        rawOutput: { ok: true },
      });
      await update({ sessionUpdate: "usage_update", used: 5, size: 50 });
      await say("Done.");
      return "end_turn";
    case "ask": {
      await say("Asking. ");
      if (speak.number === 2) await update({ sessionUpdate: "state_update", state: "requires_action" });
      const options = [
        { optionId: "go", name: "Go on", kind: "allow_once" },
        { optionId: "stop", name: "Leave it", kind: "reject_once" },
      ];
      const call = { toolCallId: "c2", title: "Remove it", kind: "delete", status: "pending" };
      const asked = speak.permission(session, call, options);
      const { outcome } = await context.client.request("session/request_permission", asked);
      if (outcome.outcome === "cancelled") return "cancelled";
      if (speak.number === 2) await update({ sessionUpdate: "state_update", state: "running" });
      await say(`${outcome.outcome} ${outcome.optionId}`);
      return "end_turn";
    }
    case "form": {
      const properties = { street: { type: "string", title: "Street" }, number: { type: "integer" } };
      const answer = await context.client.request("elicitation/create", {
        sessionId: session, mode: "form", message: "Where to?",
        requestedSchema: { type: "object", properties, required: ["street", "number"] },
      });
      await say(`${answer.action} ${JSON.stringify(answer.content ?? null)}`);
      return "end_turn";
    }
    case "wait":
      await say("Waiting. ");
      await stopped;
      await say("Stopped.");
      return "cancelled";
    case "servers":
      await say(JSON.stringify(own.servers.map((server) => [server.name, server.command])));
      return "end_turn";
    case "options":
      await say(JSON.stringify(own.options));
      return "end_turn";
    case "blocks":
      await say(JSON.stringify(prompt.map((block) => block.type)));
      return "end_turn";
    case "fail":
      throw new speak.sdk.RequestError(-32050, "the saw is broken", { tool: "saw" });
    case "recall":
      await say(JSON.stringify(own.said.get(session)));
      return "end_turn";
    default:
      await say(`heard ${text}`);
      return "end_turn";
  }
}

const SPEAK1 = {
  number: 1,
  sdk: v1,
  chunk: (kind, text) => ({ sessionUpdate: kind, content: { type: "text", text } }),
  plan: (entries) => ({ sessionUpdate: "plan", entries }),
  call: (call) => ({ sessionUpdate: "tool_call", ...call }),
  diff: { type: "diff", path: "/a.py", oldText: "old\n", newText: "new\n" },
  permission: (sessionId, toolCall, options) => ({ sessionId, toolCall, options }),
};

const PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-old\n+new\n";
const SPEAK2 = {
  number: 2,
  sdk: v2,
  chunk: (kind, text) => ({ sessionUpdate: kind, messageId: kind, content: { type: "text", text } }),
  plan: (entries) => ({ sessionUpdate: "plan_update", plan: { type: "items", planId: "p", entries } }),
  call: (call) => ({ sessionUpdate: "tool_call_update", ...call }),
  diff: {
    type: "diff", changes: [{ operation: "modify", path: "/a.py" }], patch: { format: "git_patch", text: PATCH },
  },
  permission: (sessionId, toolCall, options) => (
    { sessionId, title: "Remove it", subject: { type: "tool_call", toolCall }, options }),
};

function agent1() {
  const own = state();
  return v1.agent({ name: "npm-agent" })
    .onRequest("initialize", () => ({
      protocolVersion: 1, agentInfo: INFO, authMethods: LOGIN ? [{ id: "key", name: "A key" }] : [],
      agentCapabilities: {
        loadSession: true, promptCapabilities: { image: true, embeddedContext: true },
        sessionCapabilities: { resume: {}, close: {} },
      },
    }))
    .onRequest("session/new", (context) => (
      { sessionId: open(own, randomUUID(), context.params.mcpServers), configOptions: options(own, "id") }))
    .onRequest("authenticate", (context) => {
      own.known = context.params.methodId === "key";
      return {};
    })
    .onRequest("session/load", (context) => {
      open(own, context.params.sessionId, context.params.mcpServers);
      return { configOptions: options(own, "id") };
    })
    .onRequest("session/resume", (context) => {
      open(own, context.params.sessionId, context.params.mcpServers);
      return { configOptions: options(own, "id") };
    })
    .onRequest("session/close", () => ({}))
    .onRequest("session/set_config_option", (context) => {
      own.options[context.params.configId] = context.params.value;
      return { configOptions: options(own, "id") };
    })
    .onNotification("session/cancel", (context) => own.stops.get(context.params.sessionId)?.())
    .onRequest("session/prompt", async (context) => (
      { stopReason: await act(own, SPEAK1, context, context.params.sessionId, context.params.prompt) }));
}

function agent2() {
  const own = state();
  return v2.agent({ name: "npm-agent" })
    .onRequest("initialize", () => ({
      protocolVersion: 2, info: INFO,
      authMethods: LOGIN ? [{ methodId: "key", type: "agent", name: "A key" }] : [],
      capabilities: { session: { prompt: { image: {}, embeddedContext: {} }, mcp: { stdio: {} } } },
    }))
    .onRequest("session/new", (context) => (
      { sessionId: open(own, randomUUID(), context.params.mcpServers), configOptions: options(own, "configId") }))
    .onRequest("session/resume", (context) => {
      open(own, context.params.sessionId, context.params.mcpServers);
      return { configOptions: options(own, "configId") };
    })
    .onRequest("session/list", () => ({ sessions: [] }))
    .onRequest("auth/login", (context) => {
      own.known = context.params.methodId === "key";
      return {};
    })
    .onRequest("auth/logout", () => ({}))
    .onRequest("session/close", () => ({}))
    .onRequest("session/set_config_option", (context) => {
      own.options[context.params.configId] = context.params.value;
      return { configOptions: options(own, "configId") };
    })
    .onNotification("session/cancel", (context) => own.stops.get(context.params.sessionId)?.())
    .onRequest("session/prompt", (context) => {
      const { sessionId, prompt } = context.params;
      const messageId = randomUUID();
      const tell = (told) => context.client.notify("session/update", { sessionId, update: told });
      const update = (told) => tell(told).catch(() => {}); // a client that has gone hears nothing, and ends nothing
      setImmediate(async () => {
        await update({ sessionUpdate: "user_message", messageId, content: prompt });
        await update({ sessionUpdate: "state_update", state: "running" });
        let ended;
        try {
          ended = { stopReason: await act(own, SPEAK2, context, sessionId, prompt) };
        } catch (error) {
          const { code = -32603, message, data } = error;
          ended = { stopReason: "error", error: { code, message, data } };
        }
        await update({ sessionUpdate: "state_update", state: "idle", ...ended });
      });
      return { messageId };
    });
}

const agent = () => agentProtocolRouter().withV1(agent1()).withV2(agent2());
if (process.argv[2] === "serve") {
  const server = new AcpServer({ createAgent: agent });
  const listening = http.createServer(createNodeHttpHandler(server));
  listening.on("upgrade", createNodeWebSocketUpgradeHandler(server, new WebSocketServer({ noServer: true })));
  listening.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${listening.address().port}`));
} else {
  const { closed } = agent().connect(v1.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
  await closed;
}

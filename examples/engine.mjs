// An engine in Node: publishes one tick, asks what an agent remembers, prints the fragment.
//
//   npm install --no-package-lock
//   node engine.mjs amqp://guest:guest@localhost:5672 [world]
//
// The services must have run once, so that the exchange and the queues are there.
import amqp from "amqplib";
import { randomUUID } from "node:crypto";

const [url = "amqp://guest:guest@localhost:5672", world = "town-7"] = process.argv.slice(2);
const connection = await amqp.connect(url);

// --- Ticks: confirmed, persistent, and returned to us where no queue takes them ---------------

const events = await connection.createConfirmChannel();
let returned = null;
events.on("return", (message) => (returned = message.fields.replyText));

/** Publish what agents did; resolves once the broker has it. May be repeated: same event. */
async function publishTick(message) {
  // Everything but letters, digits, "-" and "_" is percent-encoded; the broker's limit is 255.
  const key = encodeURIComponent(message.world)
    .replace(/[.!~*'()]/g, (c) => "%" + c.charCodeAt(0).toString(16).toUpperCase());
  events.publish(
    "tickmind.events",
    `tick.ended.v1.${key}`.slice(0, 255),
    Buffer.from(JSON.stringify(message)),
    {
      persistent: true,
      mandatory: true,
      contentType: "application/json",
      headers: { sent_at: Date.now() },
    },
  );
  await events.waitForConfirms();
  if (returned !== null) throw new Error(`the tick was not taken: ${returned}`);
}

// --- Recalls: one consumer of replies, told apart by correlation id ---------------------------

const calls = await connection.createChannel();
const waiting = new Map();
const replyTo = "amq.rabbitmq.reply-to";
await calls.consume(
  replyTo,
  (message) => {
    const answer = waiting.get(message?.properties.correlationId);
    answer?.(JSON.parse(message.content.toString()));
  },
  { noAck: true },
);

/** The reply, or null once the deadline has passed: go on without memories then. */
function recall(request) {
  return new Promise((resolve) => {
    const correlationId = randomUUID();
    const answer = (reply) => {
      clearTimeout(timer);
      waiting.delete(correlationId);
      resolve(reply);
    };
    const timer = setTimeout(answer, request.deadline_ms, null);
    waiting.set(correlationId, answer);
    calls.publish("", "tickmind.recall", Buffer.from(JSON.stringify(request)), {
      replyTo,
      correlationId,
      expiration: String(request.deadline_ms),
      contentType: "application/json",
      headers: { sent_at: Date.now() },
    });
  });
}

// --- One day in the life of an engine ---------------------------------------------------------

await publishTick({
  world,
  tick: 42,
  decisions: [
    { agent: "bob", action: "talk", speech: "The market sells fresh fish", heard_by: ["alice"] },
    { agent: "alice", action: "move", target: [15, 8], place: "market" },
    { agent: "carol", action: "stay" },
  ],
});

// A memory can be recalled once it has a vector: the reply says up to which tick all have.
let reply = null;
for (let attempts = 0; attempts < 60 && !(reply?.watermarks.embedded >= 42); attempts++) {
  if (attempts > 0) await new Promise((resolve) => setTimeout(resolve, 500));
  reply = await recall({
    world,
    tick: 200,
    queries: [
      { agent: "alice", observation: "Alice walks past the market" },
      { agent: "carol", observation: "Carol is at home" },
    ],
    deadline_ms: 2000,
  });
}

for (const { agent, status, reason, fragment } of reply?.replies ?? []) {
  console.log(`${agent}: ${status}${reason ? ` (${reason})` : ""}`);
  if (fragment) console.log(fragment);
}
await connection.close();

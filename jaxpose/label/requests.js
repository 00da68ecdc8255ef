// Requests to the server. Those that hang are given up, as over a tunnel that has died: others can then be made.

// The requests are given up that have waited for so long, if no byte of any answer has come meanwhile: over a slow line, the
// answers to others come. To the first one, a server with a large project may take a while.
const QUIET_MS = 15_000, FIRST_QUIET_MS = 120_000, LOOK_MS = 1000;
// If each of the last pictures came at a lower rate, previews are asked for. Smaller answers come in one piece, and show no
// rate.
const SLOW_BYTES_PER_MS = 3000, LEAST_BYTES = 50_000, LAST_RATES = 6;

// The run of the server that numbered the images and animals of this page, "" before it is known. The server refuses the
// requests of pages of another run: there, a number may be another image or animal.
export const server = { run: "" };
const runHeader = () => (server.run ? { "Jaxpose-Run": server.run } : {});

// {what ends a request: when it is given up}.
const waiting = new Map();
let quietMs = FIRST_QUIET_MS;
// Of the last pictures, in bytes per millisecond.
const rates = [];

export const isSlowLine = () => rates.length > 0 && Math.max(...rates) < SLOW_BYTES_PER_MS;

setInterval(() => {
  for (const [ending, endMs] of waiting) if (performance.now() > endMs) ending.abort();
}, LOOK_MS);

// Something has come from the server.
function heard() {
  quietMs = QUIET_MS;
  for (const ending of waiting.keys()) waiting.set(ending, performance.now() + quietMs);
}

// Fetches an answer: {status, headers, blob}; fails if there is none.
async function request(path, options) {
  const ending = new AbortController();
  waiting.set(ending, performance.now() + quietMs);
  try {
    const answer = await fetch(path, { ...options, signal: ending.signal }), reader = answer.body.getReader(), parts = [];
    const startMs = performance.now();
    for (let isDone = false; !isDone;) {
      heard();
      const { done, value } = await reader.read();
      if (!done) parts.push(value);
      isDone = done;
    }
    const blob = new Blob(parts);
    if (blob.size > LEAST_BYTES) rates.push(blob.size / Math.max(1, performance.now() - startMs));
    rates.splice(0, rates.length - LAST_RATES);
    return { status: answer.status, headers: answer.headers, blob };
  } finally {
    waiting.delete(ending);
  }
}

// Asks the server; a body makes it a POST. The status is 0 if there is no answer.
export async function ask(path, body, headers = runHeader()) {
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body), keepalive: true,
  };
  try {
    const { status, blob } = await request(path, options);
    return { status, content: JSON.parse(await blob.text()) };
  } catch {
    return { status: 0, content: { error: "jaxpose label does not answer: start it again, or the tunnel to it" } };
  }
}

// Asks for a picture: {bitmap, tag}, or {error, isLost, tag}. The tag is another one after the file has been replaced.
export async function askPicture(path) {
  try {
    const { status, headers, blob } = await request(path, { headers: runHeader() }), tag = headers.get("Jaxpose-Picture") ?? "";
    if (status !== 200) return { error: JSON.parse(await blob.text()).error, isLost: isLost(status), tag };
    return { bitmap: await createImageBitmap(blob), tag };
  } catch {
    return { error: "jaxpose label does not answer", isLost: true, tag: "" };
  }
}

// Whether an answer of this status says nothing about the question: another time, there may be an answer.
export const isLost = (status) => [0, 403, 408, 410].includes(status) || status >= 500;

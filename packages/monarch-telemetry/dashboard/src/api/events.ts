/** Server-sent events over fetch: EventSource cannot send the token. */

export interface ServerEvent {
  event: string;
  data: string;
  id: string | null;
}

/** Cuts text into events, in whatever pieces the text comes. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private id: string | null = null;

  push(text: string): ServerEvent[] {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    return lines.map((line) => this.line(line)).filter((event) => event !== null);
  }

  private line(line: string): ServerEvent | null {
    if (line === "") return this.finish();
    const colon = line.indexOf(":");
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id") this.id = value;
    return null;
  }

  private finish(): ServerEvent | null {
    const event = { event: this.event || "message", data: this.data.join("\n"), id: this.id };
    const empty = this.data.length === 0;
    this.event = "";
    this.data = [];
    return empty ? null : event;
  }
}

/** Reads events until the stream ends; throws what the connection throws. */
export async function read(response: Response, on: (event: ServerEvent) => void): Promise<void> {
  if (response.body === null) return;
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    for (const event of parser.push(decoder.decode(value, { stream: true }))) on(event);
  }
}

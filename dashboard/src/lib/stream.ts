/** Server-sent events over `fetch`, which tells a refusal's status and shows that a quiet stream is still alive. */
import { request } from './api';

export interface Listener {
  /** Anything arrived, a ping as well. */
  alive?: () => void;
  event: (name: string, data: string) => void;
}

/** Read until the server ends the stream or `signal` aborts. Raises what `request` raises. */
export async function listen(path: string, signal: AbortSignal, listener: Listener): Promise<void> {
  const answer = await request(path, { signal, headers: { accept: 'text/event-stream' } });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    listener.alive?.();
    rest += value;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop() ?? '';
    for (const block of blocks) deliver(block, listener);
  }
}

function deliver(block: string, listener: Listener): void {
  let name = 'message';
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith('event:')) name = line.slice(6).trim();
    else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
  }
  if (data.length) listener.event(name, data.join('\n'));
}

/** Calls of the server's API. What it refuses becomes an `ApiError` with the server's own words. */
import { auth } from './auth.svelte';

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly errors: string[]
  ) {
    super(errors.join('\n'));
  }

  /** The server does not have this route. */
  get isMissing(): boolean {
    return this.status === 404 && this.errors[0] === '404 page not found';
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function refusal(answer: Response): Promise<ApiError> {
  const text = await answer.text();
  let errors = [`The server answered ${answer.status} ${answer.statusText}`.trim()];
  try {
    const body: unknown = JSON.parse(text);
    if (body && typeof body === 'object' && 'errors' in body && Array.isArray(body.errors)) {
      errors = body.errors.map(String);
    }
  } catch {
    // A proxy in between answered, not our server; the status says enough.
  }
  return new ApiError(answer.status, errors);
}

/** The answer of any status below 400. Raises `ApiError`; status 0 means that the server can't be reached. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, { credentials: 'same-origin', ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, ['The server can’t be reached. It may be restarting; this page tries again.']);
  }
  if (answer.ok) return answer;
  const refused = await refusal(answer);
  if (answer.status === 401 && !path.startsWith('/monitoring/api/auth/')) await auth.check();
  throw refused;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal: signal ?? null, headers: { accept: 'application/json' } })).json();
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const options: RequestInit = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { 'content-type': 'application/json' };
  }
  return (await request(path, options)).json();
}

/** Text for one part of a path. */
export const part = encodeURIComponent;

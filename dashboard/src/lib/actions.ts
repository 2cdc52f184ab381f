/** What operators do with tasks. */
import { ApiError, messageOf, part, send } from './api';
import type { Action, State } from './types';

/** Legal actions by state, as `GET /api/states` has them; each answer of a task names its own as well. */
export const LEGAL: Record<State, Action[]> = {
  scheduled: ['run', 'cancel', 'archive', 'delete'],
  pending: ['cancel', 'archive', 'delete'],
  active: ['cancel'],
  retry: ['run', 'cancel', 'archive', 'delete'],
  completed: ['run', 'delete'],
  archived: ['run', 'delete']
};

export const VERBS: Record<Action, { name: string; done: string; isDangerous: boolean }> = {
  run: { name: 'Run now', done: 'put into pending', isDangerous: false },
  cancel: { name: 'Cancel', done: 'cancelled', isDangerous: true },
  archive: { name: 'Archive', done: 'archived', isDangerous: true },
  delete: { name: 'Delete', done: 'deleted', isDangerous: true }
};

export interface Outcome {
  done: string[];
  failed: { id: string; error: string }[];
}

interface Named {
  id: string;
  queue: string;
}

const MOST_AT_ONCE = 500;

/** Do one thing to some tasks; says per task how it went. */
export async function act(action: Action, tasks: Named[]): Promise<Outcome> {
  const outcome: Outcome = { done: [], failed: [] };
  for (let start = 0; start < tasks.length; start += MOST_AT_ONCE) {
    const slice = tasks.slice(start, start + MOST_AT_ONCE);
    const { done, failed } = await actOnSome(action, slice);
    outcome.done.push(...done);
    outcome.failed.push(...failed);
  }
  return outcome;
}

async function actOnSome(action: Action, tasks: Named[]): Promise<Outcome> {
  try {
    return await send<Outcome>('POST', '/api/tasks:act', { action, task_ids: tasks.map((task) => task.id) });
  } catch (error) {
    // An older server knows only one task at a time.
    if (!(error instanceof ApiError && error.isMissing)) throw error;
  }
  const outcome: Outcome = { done: [], failed: [] };
  for (const task of tasks) {
    try {
      await (action === 'delete'
        ? send('DELETE', `/api/queues/${part(task.queue)}/tasks/${part(task.id)}`)
        : send('POST', `/api/tasks/${part(task.id)}/${action}`));
      outcome.done.push(task.id);
    } catch (error) {
      outcome.failed.push({ id: task.id, error: messageOf(error) });
    }
  }
  return outcome;
}

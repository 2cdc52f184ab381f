/** Short messages about what was done. */
import { messageOf } from './api';

interface Toast {
  id: number;
  text: string;
  isBad: boolean;
}

class Toasts {
  list = $state<Toast[]>([]);
  #next = 1;

  say(text: string, isBad = false): void {
    const id = this.#next++;
    this.list.push({ id, text, isBad });
    setTimeout(() => this.drop(id), isBad ? 12_000 : 4000);
  }

  drop(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id);
  }

  /** Do something that changes the server, and say how it went. Returns whether it went well. */
  async tell(work: Promise<unknown>, done: string): Promise<boolean> {
    try {
      await work;
      this.say(done);
      return true;
    } catch (error) {
      this.say(messageOf(error), true);
      return false;
    }
  }
}

export const toasts = new Toasts();

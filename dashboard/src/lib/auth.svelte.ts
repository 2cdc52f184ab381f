/** Who is signed in, and what they may do. */
import { goto } from '$app/navigation';
import { base } from '$app/paths';
import { get, send } from './api';
import type { Me, Role } from './types';

interface Status {
  authenticated: boolean;
  setup_required: boolean;
}

const PUBLIC = ['/login', '/setup'];

class Auth {
  me = $state<Me | null>(null);
  /** The first look at the session has been answered. */
  isKnown = $state(false);
  problem = $state('');

  /** Ask the server who we are, and go where that leads. */
  async check(): Promise<void> {
    try {
      const status = await get<Status>('/monitoring/api/auth/status');
      this.me = status.authenticated ? await get<Me>('/api/me') : null;
      this.problem = '';
      this.isKnown = true;
      await this.#lead(status);
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }

  async #lead(status: Status): Promise<void> {
    const here = location.pathname.slice(base.length) || '/';
    if (!status.authenticated) {
      const wanted = status.setup_required ? '/setup' : '/login';
      if (here === wanted) return;
      const back = PUBLIC.includes(here) || here === '/' ? '' : `?next=${encodeURIComponent(here + location.search)}`;
      await goto(`${base}${wanted}${back}`, { replaceState: true });
    } else if (PUBLIC.includes(here)) {
      const next = new URLSearchParams(location.search).get('next') ?? '/';
      // Only a path of our own: "//elsewhere" would leave the dashboard.
      await goto(base + (/^\/(?![/\\])/.test(next) ? next : '/'), { replaceState: true });
    }
  }

  /** Whether an action of this role may be offered. The server decides anew on each request. */
  may(role: Role): boolean {
    return this.me !== null && !this.me.read_only && (this.me.role === 'admin' || this.me.roles.includes(role));
  }

  get isAdmin(): boolean {
    return this.me?.role === 'admin';
  }

  async leave(): Promise<void> {
    await send('POST', '/monitoring/api/auth/logout');
    this.me = null;
    await this.check();
  }
}

export const auth = new Auth();

/** What a person set for this browser. */
const KEY = 'runqy-settings';

export const POLL_SECONDS = [2, 5, 10, 30, 60];

interface Values {
  theme: 'system' | 'light' | 'dark';
  pollInterval: number;
  viewDensity: 'comfortable' | 'compact';
  sidebarCollapsed: boolean;
}

const DEFAULTS: Values = {
  theme: 'system',
  pollInterval: 5,
  viewDensity: 'comfortable',
  sidebarCollapsed: false
};

function stored(): Partial<Values> {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? '{}');
    return value && typeof value === 'object' ? value : {};
  } catch {
    return {};
  }
}

class Settings {
  values = $state<Values>({ ...DEFAULTS, ...stored() });
  /** Grows when the colours change, so that what is drawn on a canvas is drawn anew. */
  painted = $state(0);

  change(part: Partial<Values>): void {
    Object.assign(this.values, part);
    try {
      localStorage.setItem(KEY, JSON.stringify(this.values));
    } catch {
      // A browser without storage keeps the choice until the page is closed.
    }
    this.apply();
  }

  reset(): void {
    this.change(DEFAULTS);
  }

  apply(): void {
    const dark =
      this.values.theme === 'dark' ||
      (this.values.theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    document.documentElement.dataset.density = this.values.viewDensity;
    this.painted += 1;
  }
}

export const settings = new Settings();

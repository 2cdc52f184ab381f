/** Something that a page shows and loads again and again, without flashing and without piling up. */
import { ApiError, messageOf } from './api';
import { live } from './live.svelte';
import { settings } from './settings.svelte';

export class Loader<T> {
  data = $state.raw<T | null>(null);
  problem = $state('');
  status = $state(0);
  isMissing = $state(false);
  isLoading = $state(false);
  #stop: AbortController | null = null;

  async load(work: (signal: AbortSignal) => Promise<T>): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    this.isLoading = true;
    try {
      const data = await work(stop.signal);
      if (stop.signal.aborted) return;
      this.data = data;
      this.problem = '';
      this.status = 200;
      this.isMissing = false;
    } catch (error) {
      if (stop.signal.aborted) return;
      this.problem = messageOf(error);
      this.status = error instanceof ApiError ? error.status : 0;
      this.isMissing = error instanceof ApiError && error.isMissing;
    }
    this.isLoading = false;
  }
}

/** Call now and again at the interval of the settings, unless the page is hidden or paused. For use in an effect. */
export function repeatedly(work: () => Promise<unknown>): () => void {
  let timer: ReturnType<typeof setTimeout>;
  let isOver = false;
  const round = async (isFirst: boolean): Promise<void> => {
    if (isFirst || (!document.hidden && !live.isPaused)) await work();
    if (!isOver) timer = setTimeout(() => void round(false), settings.values.pollInterval * 1000);
  };
  void round(true);
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

import adapter from '@sveltejs/adapter-static';
import { vitePreprocess } from '@sveltejs/vite-plugin-svelte';

const built = '../src/runqy/server/dashboard_dist';

/** @type {import('@sveltejs/kit').Config} */
export default {
  preprocess: vitePreprocess(),
  compilerOptions: { runes: true },
  kit: {
    adapter: adapter({ pages: built, assets: built, fallback: 'index.html' }),
    paths: { base: '/monitoring', relative: false },
    // One script and one style sheet: fewer requests, and less weight in all.
    output: { bundleStrategy: 'single' },
    version: { name: 'runqy' }
  }
};

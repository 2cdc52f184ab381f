import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sveltekit } from '@sveltejs/kit/vite';
import { defineConfig, type Plugin } from 'vite';

const built = '../src/runqy/server/dashboard_dist';

/** Our content security policy allows no inline style; app.css has this rule instead. */
function withoutInlineStyle(): Plugin {
  return {
    name: 'without-inline-style',
    enforce: 'pre',
    transform(code, id) {
      if (id.split('?')[0]?.endsWith('/generated/root.svelte')) return code.replace(/ style="[^"]*"/g, '');
    }
  };
}

/** Nor an inline script: the one that starts the page becomes a file. */
function withStartFile(): Plugin {
  return {
    name: 'with-start-file',
    apply: 'build',
    closeBundle: {
      order: 'post',
      sequential: true,
      handler() {
        if (this.environment && this.environment.name !== 'ssr') return;
        const page = join(built, 'index.html');
        const html = readFileSync(page, 'utf8');
        const [whole, text] = /<script>([\s\S]*?)<\/script>/.exec(html) ?? [];
        if (!whole || !text) throw new Error('the start script is not where it was');
        const name = `start.${createHash('sha256').update(text).digest('hex').slice(0, 8)}.js`;
        mkdirSync(join(built, '_app/immutable'), { recursive: true });
        writeFileSync(join(built, '_app/immutable', name), text.trim() + '\n');
        const tag = `<script src="/monitoring/_app/immutable/${name}"></script>`;
        writeFileSync(page, html.replace(whole, () => tag));
      }
    }
  };
}

export default defineConfig({
  plugins: [withoutInlineStyle(), sveltekit(), withStartFile()],
  build: { target: 'es2022', assetsInlineLimit: 0 },
  server: { proxy: { '^/(api|monitoring/api|workers|queue)(/|$)': 'http://127.0.0.1:3000' } }
});

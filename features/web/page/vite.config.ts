import { defineConfig } from "vite";

export default defineConfig({
  build: {
    target: "es2022",
    // The policy of kas allows no inline code, and the polyfill is for browsers that the page does not support.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: true,
  },
  esbuild: { jsx: "automatic", jsxImportSource: "preact" },
  server: {
    proxy: {
      "/web": "http://127.0.0.1:8156",
      "/agents": {
        target: "http://127.0.0.1:8156",
        bypass: (request) => (request.headers["kas-web"] ? undefined : "/index.html"),
      },
    },
  },
});

import { defineConfig } from "vitest/config";

// The folder of the Python package, unless the build names another one.
const OUT = process.env["DASHBOARD_OUT"] ?? "../python/monarch/telemetry/_dashboard/static";

export default defineConfig({
  base: "/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: "es2022",
    // Older targets would replace light-dark() by variables that the theme button does not set.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // The policy forbids inline scripts, and data: only for images.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    reportCompressedSize: false,
    // The licenses of what is bundled ask to be shipped with it.
    license: { fileName: "licenses.txt" },
  },
  test: { include: ["tests/**/*.test.ts"], environment: "node" },
});

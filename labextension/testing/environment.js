const { TestEnvironment } = require('jest-environment-jsdom');

// Names that browsers and Node.js have and jsdom lacks. JupyterLab modules read
// the names when loaded.
const MISSING = [
  'fetch',
  'Headers',
  'Request',
  'Response',
  'TextDecoder',
  'TextEncoder'
];

module.exports = class extends TestEnvironment {
  async setup() {
    await super.setup();
    MISSING.forEach(name => (this.global[name] = globalThis[name]));
    this.global.requestIdleCallback = callback =>
      this.global.setTimeout(callback, 0);
    this.global.ResizeObserver = class {
      observe() {}
      unobserve() {}
      disconnect() {}
    };
    this.global.matchMedia = () => ({
      matches: false,
      addListener() {},
      addEventListener() {}
    });
    this.global.DragEvent = class {};
  }
};

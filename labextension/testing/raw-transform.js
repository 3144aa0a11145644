// An import of an SVG file gives its text, as with the bundler.
module.exports = {
  process: text => ({ code: `module.exports = ${JSON.stringify(text)};` })
};

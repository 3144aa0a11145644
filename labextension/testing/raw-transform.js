// SVG files are imported as their text, as the bundler does it.
module.exports = {
  process: text => ({ code: `module.exports = ${JSON.stringify(text)};` })
};

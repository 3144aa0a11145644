/** Type of imported SVG files. */

declare module '*.svg' {
  const text: string;
  export default text;
}

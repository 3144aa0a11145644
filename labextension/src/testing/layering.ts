/**
 * Check of given sources: the order of imports between folders, circular
 * imports, and the number of files in each folder. The caller reads the files.
 */

import * as path from 'path';
import * as ts from 'typescript';

/**
 * Folders and files of `src`, the lowest first. The names in a row are
 * independent of each other.
 */
const ORDER: ReadonlyArray<ReadonlyArray<string>> = [
  ['base'],
  ['server'],
  ['sharing'],
  ['history'],
  ['tokens'],
  ['actions'],
  ['sharingPlugin', 'status', 'panel/timeline', 'waiting', 'idleness'],
  ['panel'],
  ['index']
];

/** Largest number of given files in a folder. */
const MAX_FILES = 12;

/**
 * Return the offences against the order of folders, each as a sentence. Circular
 * imports and folders with too many files are also offences. Imports of types
 * and imports inside functions count.
 *
 * @param sources - the text of each file by its path in `src`
 */
export function findOffences(sources: ReadonlyMap<string, string>): string[] {
  const imports = new Map<string, string[]>();
  const unknown: string[] = [];
  for (const [file, text] of sources) {
    imports.set(file, []);
    for (const name of importsInSrc(file, text)) {
      const target = resolve(file, name, sources);
      if (target) {
        imports.get(file)?.push(target);
      } else {
        unknown.push(`${file} imports ${name}, which is none of the sources.`);
      }
    }
  }
  return [
    ...fullFolders(sources),
    ...unknown,
    ...upwardImports(imports),
    ...circles(imports)
  ];
}

/** Return the names of a file's imports that lie in `src`. */
function importsInSrc(file: string, text: string): string[] {
  return ts
    .preProcessFile(text)
    .importedFiles.map(({ fileName }) => fileName)
    .filter(name => name.startsWith('.') && !join(file, name).startsWith('..'));
}

/** Return the path in `src` that an import of `file` names. */
function join(file: string, name: string): string {
  return path.posix.join(path.posix.dirname(file), name);
}

/** Return the source that an import of `file` names. */
function resolve(
  file: string,
  name: string,
  sources: ReadonlyMap<string, string>
): string | undefined {
  const target = join(file, name).replace(/\.js$/, '');
  return [
    `${target}.ts`,
    `${target}.tsx`,
    path.posix.join(target, 'index.ts')
  ].find(source => sources.has(source));
}

/** Return the folder of a file; for a file directly in `src`, its own name. */
function placeOf(file: string): string {
  const folder = path.posix.dirname(file);
  return folder === '.' ? path.posix.parse(file).name : folder;
}

function fullFolders(sources: ReadonlyMap<string, string>): string[] {
  const counts = new Map<string, number>();
  for (const file of sources.keys()) {
    const folder = path.posix.dirname(file);
    counts.set(folder, (counts.get(folder) ?? 0) + 1);
  }
  return [...counts]
    .filter(([, count]) => count > MAX_FILES)
    .map(([folder, count]) => `${folder} has ${count} files.`);
}

function upwardImports(imports: ReadonlyMap<string, string[]>): string[] {
  const level = (place: string) =>
    ORDER.findIndex(names => names.includes(place));
  const offences: string[] = [];
  for (const [file, targets] of imports) {
    const place = placeOf(file);
    if (level(place) === -1) {
      offences.push(`${file} has no place in the order.`);
    }
    for (const target of targets) {
      const other = placeOf(target);
      if (other !== place && level(other) >= level(place)) {
        offences.push(`${file} imports ${target}.`);
      }
    }
  }
  return offences;
}

/** Return one circle for each import that closes one in a depth-first search. */
function circles(imports: ReadonlyMap<string, string[]>): string[] {
  const offences: string[] = [];
  const done = new Set<string>();
  const visit = (file: string, trail: ReadonlyArray<string>) => {
    const start = trail.indexOf(file);
    if (start !== -1) {
      const circle = [...trail.slice(start), file].join(' → ');
      offences.push(`${circle} is a circle.`);
    } else if (!done.has(file)) {
      imports.get(file)?.forEach(target => visit(target, [...trail, file]));
      done.add(file);
    }
  };
  [...imports.keys()].forEach(file => visit(file, []));
  return offences;
}

/** Tests of the order of imports in `src`, and of the check of that order. */

import { readdirSync, readFileSync } from 'fs';
import * as path from 'path';

import { findOffences } from './testing/layering';

/**
 * Return the sources in a folder of `src` by path, without tests and their
 * support.
 */
function readSources(folder = '.'): [string, string][] {
  return readdirSync(path.join(__dirname, folder), {
    withFileTypes: true
  }).flatMap((entry): [string, string][] => {
    const name = path.posix.join(folder, entry.name);
    if (entry.isDirectory()) {
      return name === 'testing' ? [] : readSources(name);
    }
    return /(?<!\.test)\.tsx?$/.test(name)
      ? [[name, readFileSync(path.join(__dirname, name), 'utf8')]]
      : [];
  });
}

describe('the sources', () => {
  const sources = new Map(readSources());

  it('are found', () => {
    expect(sources.has('index.ts')).toBe(true);
    expect(sources.has('panel/timeline/timeline.tsx')).toBe(true);
  });

  it('keep the order of folders', () => {
    expect(findOffences(sources)).toEqual([]);
  });
});

describe('findOffences', () => {
  const find = (sources: Record<string, string>) =>
    findOffences(new Map(Object.entries(sources)));

  it('returns an import from a higher folder', () => {
    const offences = find({
      'base/units.ts': "import { SharingModel } from '../sharing/model';",
      'sharing/model.ts': ''
    });
    expect(offences).toEqual(['base/units.ts imports sharing/model.ts.']);
  });

  it('returns an import of a type from an independent folder', () => {
    const offences = find({
      'status/item.tsx': "import type { IWait } from '../waiting/wait';",
      'waiting/wait.ts': ''
    });
    expect(offences).toEqual(['status/item.tsx imports waiting/wait.ts.']);
  });

  it('returns an import inside a function', () => {
    const offences = find({
      'tokens.ts': "const open = () => import('./actions/dialog');",
      'actions/dialog.tsx': ''
    });
    expect(offences).toEqual(['tokens.ts imports actions/dialog.tsx.']);
  });

  it.each(['..', '../index', '../index.js'])(
    'returns an import of the index as %s',
    name => {
      const offences = find({
        'base/trans.ts': `import '${name}';`,
        'index.ts': ''
      });
      expect(offences).toEqual(['base/trans.ts imports index.ts.']);
    }
  );

  it('returns an import of a file that is no source, such as a support of tests', () => {
    const offences = find({ 'base/trans.ts': "import '../testing/given';" });
    expect(offences).toEqual([
      'base/trans.ts imports ../testing/given, which is none of the sources.'
    ]);
  });

  it('returns a circle of files in one folder', () => {
    const offences = find({
      'panel/a.ts': "import './b';",
      'panel/b.ts': "export { a } from './c';",
      'panel/c.ts': "import { b } from './b';"
    });
    expect(offences).toEqual([
      'panel/b.ts → panel/c.ts → panel/b.ts is a circle.'
    ]);
  });

  it('returns a file without a place', () => {
    expect(find({ 'model/a.ts': '' })).toEqual([
      'model/a.ts has no place in the order.'
    ]);
  });

  it('returns a folder with too many files', () => {
    const names = Array.from({ length: 13 }, (_, i) => [`base/${i}.ts`, '']);
    expect(find(Object.fromEntries(names))).toEqual(['base has 13 files.']);
  });

  it('accepts imports from lower folders', () => {
    const offences = find({
      'panel/panel.tsx': "import { Timeline } from './timeline/timeline';",
      'panel/timeline/timeline.tsx':
        "import { trans } from '../../base/trans';",
      'base/trans.ts':
        "import type { ITranslator } from '@jupyterlab/translation';"
    });
    expect(offences).toEqual([]);
  });
});

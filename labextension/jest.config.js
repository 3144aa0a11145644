// JupyterLab's packages are ES modules, so they are compiled along with ours.
const esModules = [
  '@jupyter',
  '@lumino',
  '@microsoft',
  'exenv-es6',
  'lib0',
  'nanoid',
  'y-protocols',
  'yjs'
];

module.exports = {
  testEnvironment: '<rootDir>/testing/environment.js',
  testMatch: ['<rootDir>/src/**/*.test.ts?(x)'],
  moduleNameMapper: { '\\.css$': '<rootDir>/testing/empty.js' },
  transform: {
    '\\.svg$': '<rootDir>/testing/raw-transform.js',
    '\\.[jt]sx?$': [
      'ts-jest',
      // Types are checked by `jlpm typecheck`; here only the syntax is lowered.
      { tsconfig: 'tsconfig.test.json', diagnostics: false }
    ]
  },
  transformIgnorePatterns: [`/node_modules/(?!(${esModules.join('|')})[^/]*/)`]
};

// JupyterLab's packages are ES modules, so jest compiles the packages too.
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
  testTimeout: 30000,
  testMatch: ['<rootDir>/src/**/*.test.ts?(x)'],
  moduleNameMapper: { '\\.css$': '<rootDir>/testing/empty.js' },
  transform: {
    '\\.svg$': '<rootDir>/testing/raw-transform.js',
    '\\.[jt]sx?$': [
      'ts-jest',
      // `jlpm typecheck` checks the types, so the compiler only lowers the
      // syntax here.
      { tsconfig: 'tsconfig.test.json', diagnostics: false }
    ]
  },
  transformIgnorePatterns: [`/node_modules/(?!(${esModules.join('|')})[^/]*/)`]
};

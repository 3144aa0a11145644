import js from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

export default defineConfig(
  {
    ignores: [
      'node_modules',
      'lib',
      'coverage',
      'jest.config.js',
      'testing',
      '*.mjs'
    ]
  },
  js.configs.recommended,
  {
    files: ['**/*.ts', '**/*.tsx'],
    plugins: { jupyter },
    extends: [...tseslint.configs.recommended, jupyter.configs.recommended],
    languageOptions: {
      parserOptions: { project: 'tsconfig.test.json', sourceType: 'module' }
    },
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-unused-vars': ['error', { args: 'none' }],
      '@typescript-eslint/no-floating-promises': [
        'error',
        { ignoreVoid: true }
      ],
      '@typescript-eslint/no-namespace': 'off',
      // The code is a few kB and needed as soon as the status bar appears.
      'jupyter/prefer-lazy-imports': 'off',
      curly: ['error', 'all'],
      eqeqeq: 'error',
      // React's messages contain the names of memoised components.
      'prefer-arrow-callback': ['error', { allowNamedFunctions: true }]
    }
  },
  {
    files: ['src/**/*.test.{ts,tsx}', 'src/testing/**'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['ui-tests/**/*.mjs'],
    languageOptions: {
      globals: Object.fromEntries(
        [
          'URL',
          'clearTimeout',
          'console',
          'document',
          'fetch',
          'globalThis',
          'MutationObserver',
          'performance',
          'process',
          'setTimeout'
        ].map(name => [name, 'readonly'])
      )
    }
  },
  prettier
);

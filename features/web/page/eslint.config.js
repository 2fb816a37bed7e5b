import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "node_modules", "src/api/graph-types.ts"] },
  ...tseslint.configs.strictTypeChecked.map((config) => ({ ...config, files: ["src/**/*.{ts,tsx}"] })),
  {
    files: ["src/**/*.{ts,tsx}"],
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      // Numbers in texts are plain.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      // A name with `_` takes a property out of an object.
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_" }],
      // Texts of a cluster are never HTML.
      "no-restricted-syntax": [
        "error",
        "JSXAttribute[name.name='dangerouslySetInnerHTML']",
        "MemberExpression[property.name=/^(innerHTML|outerHTML|insertAdjacentHTML)$/]",
      ].map((rule, index) =>
        index === 0 ? rule : { selector: rule, message: "Show texts of a cluster as text." },
      ),
    },
  },
);

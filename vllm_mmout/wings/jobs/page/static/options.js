/** The options of a request, read from the page's form. */
import { byId } from "./elements.js";

/** Return the form fields that are not empty, by name. */
export function fields() {
  const texts = [...new FormData(byId("request"))].map(([name, text]) => [name, text.trim()]);
  return Object.fromEntries(texts.filter(([, text]) => text));
}

/** Mark and focus the field that an error names. Without a name only remove the mark of the previous error. */
export function pointAt(param) {
  for (const field of byId("request").elements) field.removeAttribute("aria-invalid");
  const wrong = param && byId("request").elements.namedItem(param);
  if (!wrong) return;
  const part = wrong.closest("details");
  if (part) part.open = true;
  wrong.setAttribute("aria-invalid", "true");
  wrong.focus();
}

/** Return the form body of a request. */
export function body(files, options) {
  const form = new FormData();
  for (const [name, text] of Object.entries(options)) form.append(name, text);
  for (const file of files) form.append("image", file, file.name);
  return form;
}

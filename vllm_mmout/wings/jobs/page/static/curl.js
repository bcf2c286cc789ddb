/** The requests of a job as curl commands. */
import { address } from "./api.js";
import { nameFor } from "./download.js";
import { queryOf } from "./job.js";
import { currentKey } from "./key.js";

/** Longer texts are not repeated in a command, which reads them from a file. */
const MOST_TEXT = 300;

/**
 * Return the commands that create a job, poll it and fetch its results.
 * @param {object} job
 * @param {{names: string[], fields: object}|null} request the request, or null if this page did not create the job
 */
export function commands(job, request) {
  const key = currentKey() === null ? [] : ['-H "Authorization: Bearer $KEY"'];
  const curl = (url, ...more) => [`curl -sS --fail-with-body ${quoted(url)}`, ...key, ...more].join(" \\\n  ");
  const lines = [];
  if (request) {
    const images = request.names.map((name) => `-F ${quoted(`image=@${fileName(name)}`)}`);
    const options = Object.entries(request.fields).map(([name, text]) => field(name, text));
    lines.push(curl(address("scenes"), ...images, ...options));
  }
  lines.push(curl(address(`scenes/${job.id}`)));
  for (const output of job.outputs) {
    const query = job.outputs.length > 1 ? `?${queryOf(output)}` : "";
    lines.push(curl(address(`scenes/${job.id}/content${query}`), `-o ${quoted(nameFor(job, output))}`));
  }
  return lines.join("\n");
}

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

// In file names curl treats "," and ";" as separators unless the name is quoted.
function fileName(name) {
  return /[,;"]/.test(name) ? `"${name.replace(/["\\]/g, String.raw`\$&`)}"` : name;
}

// curl takes a value that begins with "@" or "<" for a file name, and text after ";" for a content type.
function field(name, text) {
  if (text.length > MOST_TEXT) return `-F ${quoted(`${name}=<${name === "aoi" ? "area.geojson" : `${name}.txt`}`)}`;
  return `${/^[@<]|;/.test(text) ? "--form-string" : "-F"} ${quoted(`${name}=${text}`)}`;
}

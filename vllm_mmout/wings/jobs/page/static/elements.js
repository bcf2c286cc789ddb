/** Elements of the page by id, and new ones. */

/** The element of an id. */
export const byId = (id) => document.getElementById(id);

/**
 * A new element.
 * @param {string} tag
 * @param {object} properties what is assigned to it
 * @param {...(Node|string)} children
 */
export function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Functions that find elements of the page and create new elements. */

/** Return the element with an id. */
export const byId = (id) => document.getElementById(id);

/**
 * Create an element.
 * @param {string} tag
 * @param {object} properties properties to set on the element
 * @param {...(Node|string)} children
 */
export function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

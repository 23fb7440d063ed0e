window.walk = {
  // Turns Gradio's theme, as its own script does, at once; returns the colour that text has then.
  turn(theme) {
    document.body.classList.toggle('dark', theme === 'dark');
    const colour = getComputedStyle(document.querySelector('.gradio-container')).color;
    const fading = document.getAnimations().filter((one) => one instanceof CSSTransition);
    fading.forEach((one) => one.finish());
    return colour;
  },
  // Tab is pressed next at the start of the page.
  begin() {
    document.querySelectorAll('[data-walked]').forEach((part) => delete part.dataset.walked);
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute('tabindex');
  },
  // Marks what has the focus; true if it is the body: nothing has.
  ended() {
    document.activeElement.dataset.walked = '';
    return document.activeElement === document.body;
  },
  // What Tab should reach and did not; of radio buttons it reaches one.
  missed() {
    const parts = 'a[href], button, input, select, textarea, summary, [tabindex]';
    return [...document.querySelectorAll(parts)].filter(
      (part) => part.tabIndex >= 0 && !part.disabled && part.type !== 'radio'
        && part.checkVisibility({visibilityProperty: true}) && part.dataset.walked === undefined
    ).map((part) => part.outerHTML.slice(0, 160));
  },
};

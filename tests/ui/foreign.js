// What a foreign page tries on the app, and what it hears.
async ([app, run]) => {
  const answers = {};
  const read = async (name, path, options) => {
    try {
      const answer = await fetch(app + path, {credentials: 'include', ...options});
      answers[name] = answer.type + ' ' + await answer.text();
    } catch (error) { answers[name] = 'refused'; }
  };
  const json = {method: 'POST', headers: {'content-type': 'application/json'}};
  await read('watch', '/finetune/watch/' + run);
  await read('start', '/gradio_api/run/start_run', {...json, body: '{"data": [{}]}'});
  const form = new FormData();
  form.append('files', new File(['foreign'], 'foreign.csv'));
  await read('upload', '/gradio_api/upload', {method: 'POST', mode: 'no-cors', body: form});
  return answers;
}

declare const htm: { bind: (h: any) => (parts: TemplateStringsArray, ...values: any[]) => any };
export default htm;

export declare const h: (type: any, props: any, ...children: any[]) => any;
export declare const render: (view: any, into: HTMLElement) => void;
